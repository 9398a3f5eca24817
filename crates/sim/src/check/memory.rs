//! What an endpoint keeps for others has bounds.

use starling_proto::{Config, Protocol};

use super::Violation;

/// Fails if messages that are being reassembled, or responses that are kept, take more than they may.
pub fn memory_within(protocol: &Protocol, config: &Config) -> Result<(), Violation> {
    within(
        "being reassembled",
        protocol.reassembling(),
        config.reassembly_bytes,
    )?;
    within(
        "of responses kept",
        protocol.retained(),
        config.retained_bytes,
    )
}

fn within(what: &str, bytes: usize, limit: usize) -> Result<(), Violation> {
    if bytes <= limit {
        return Ok(());
    }
    let text = format!("{bytes} bytes {what}, of at most {limit}");
    Err(Violation::new("memory", text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_that_is_exceeded_is_found() {
        assert_eq!(within("kept", 7, 7), Ok(()));
        let found = within("kept", 8, 7).unwrap_err();
        assert_eq!(found.detail, "8 bytes kept, of at most 7");
    }
}
