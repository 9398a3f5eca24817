//! A plug-in of the managed service: a policy that numbers requests.
//!
//! ```sh
//! cargo build --release -p starling-example-plugin
//! starling ctl plugin add $PWD/target/release/libstarling_example_plugin.so
//! starling ctl attach numbers number key=x-number
//! ```

use serde::Deserialize;
use starling_plugin::{Code, Policy, Request, Verdict};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// The key of the metadata that has the number.
    key: String,
}

/// Adds its number to the metadata of each request.
struct Number {
    key: String,
    last: u64,
}

impl Policy for Number {
    const NAME: &'static str = "number";
    const SUMMARY: &'static str = "adds a number to the metadata of each request";
    const EXAMPLE: &'static str = r#"{"key": "x-number"}"#;
    const STATE_VERSION: u16 = 1;

    fn new(settings: &str) -> Result<Self, String> {
        let settings: Settings =
            serde_json::from_str(settings).map_err(|error| error.to_string())?;
        let (key, last) = (settings.key, 0);
        Ok(Self { key, last })
    }

    fn on_request(&mut self, request: &mut Request<'_>) -> Verdict {
        self.last += 1;
        match request.set(&self.key, self.last.to_string().as_bytes()) {
            Ok(()) => Verdict::Pass,
            Err(error) => Verdict::refuse(Code::InvalidArgument, error.to_string()),
        }
    }

    fn save(&self) -> Vec<u8> {
        self.last.to_le_bytes().to_vec()
    }

    fn restore(&mut self, _version: u16, state: &[u8]) -> Result<(), String> {
        let last = state.try_into().map_err(|_| "it is no number")?;
        self.last = u64::from_le_bytes(last);
        Ok(())
    }
}

starling_plugin::export_policies!(Number);
