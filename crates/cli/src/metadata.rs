//! `--metadata`: what a command sends beside all its requests, such as a token.

use clap::Args;
use starling::CallOptions;

use crate::error::CliError;

#[derive(Debug, Args)]
pub(crate) struct Metadata {
    /// Sent beside all requests, such as a token; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse)]
    metadata: Vec<(String, String)>,
}

fn parse(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.into(), value.into()))
}

impl Metadata {
    /// Options of calls that have it.
    pub(crate) fn options(&self) -> Result<CallOptions, CliError> {
        let mut options = CallOptions::default();
        for (key, value) in &self.metadata {
            let inserted = options.metadata.insert(key, value);
            inserted.map_err(|error| CliError::Usage(format!("--metadata {key}: {error}")))?;
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_a_key_and_a_value() {
        assert_eq!(parse("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(parse("a").is_err());
        let bad = Metadata {
            metadata: vec![("no key".into(), "b".into())],
        };
        let error = bad.options().expect_err("a key has no spaces");
        assert!(error.to_string().contains("--metadata no key"), "{error}");
    }
}
