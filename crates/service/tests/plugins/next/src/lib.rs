//! A later version of the example's plug-in: its numbers have a mark, and its state has another form.

use starling_plugin::{Policy, Request, Verdict};

/// What its numbers begin with.
const MARK: &str = "v2-";

struct Number {
    last: u64,
}

impl Policy for Number {
    const NAME: &'static str = "number";
    const SUMMARY: &'static str = "adds a marked number to the metadata of each request";
    const STATE_VERSION: u16 = 2;

    fn new(_settings: &str) -> Result<Self, String> {
        Ok(Self { last: 0 })
    }

    fn on_request(&mut self, request: &mut Request<'_>) -> Verdict {
        self.last += 1;
        let number = format!("{MARK}{}", self.last);
        request.set("x-number", number.as_bytes()).expect("it fits");
        Verdict::Pass
    }

    fn save(&self) -> Vec<u8> {
        format!("{MARK}{}", self.last).into_bytes()
    }

    fn restore(&mut self, version: u16, state: &[u8]) -> Result<(), String> {
        let last = match version {
            1 => state.try_into().ok().map(u64::from_le_bytes),
            _ => std::str::from_utf8(state)
                .ok()
                .and_then(|text| text.strip_prefix(MARK)?.parse().ok()),
        };
        self.last = last.ok_or("it is no number")?;
        Ok(())
    }
}

starling_plugin::export_policies!(Number);
