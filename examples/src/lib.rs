//! Examples that the README is made of.
