//! The session protocol of Starling as a pure state machine.
