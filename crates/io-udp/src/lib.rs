//! Packet I/O over kernel UDP sockets.
