//! Findings, as text and as JSON.

use std::fmt::Write as _;

use serde_json::json;

/// How good a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// The device works, but could do more.
    Note,
    /// The device does not work.
    Bad,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Bad => "bad",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) level: Level,
    pub(super) what: String,
    /// What to do about it.
    pub(super) advice: Option<String>,
}

impl Finding {
    pub(super) fn ok(what: impl Into<String>) -> Self {
        Self {
            level: Level::Ok,
            what: what.into(),
            advice: None,
        }
    }

    pub(super) fn note(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            level: Level::Note,
            what: what.into(),
            advice: Some(advice.into()),
        }
    }

    pub(super) fn bad(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            level: Level::Bad,
            ..Self::note(what, advice)
        }
    }
}

/// All findings about one device, or about the host.
#[derive(Clone, Debug)]
pub(super) struct Findings {
    pub(super) about: &'static str,
    all: Vec<Finding>,
    /// Calls were made.
    tried: bool,
}

impl Findings {
    pub(super) fn new(about: &'static str) -> Self {
        Self {
            about,
            all: vec![],
            tried: false,
        }
    }

    pub(super) fn add(&mut self, finding: Finding) {
        self.all.push(finding);
    }

    /// Adds the result of calls.
    pub(super) fn add_trial(&mut self, finding: Finding) {
        self.tried = true;
        self.add(finding);
    }

    pub(super) fn ok(&mut self, what: impl Into<String>) {
        self.add(Finding::ok(what));
    }

    pub(super) fn note(&mut self, what: impl Into<String>, advice: impl Into<String>) {
        self.add(Finding::note(what, advice));
    }

    pub(super) fn bad(&mut self, what: impl Into<String>, advice: impl Into<String>) {
        self.add(Finding::bad(what, advice));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Finding> {
        self.all.iter()
    }

    /// The worst level of all findings.
    pub(super) fn level(&self) -> Level {
        let levels = self.iter().map(|finding| finding.level);
        levels.max().unwrap_or(Level::Ok)
    }

    pub(super) fn text(&self) -> String {
        let verdict = match (self.about, self.level(), self.tried) {
            ("host" | "server", ..) => "",
            (_, Level::Bad, _) => ": does not work here",
            (_, Level::Note, true) => ": works, but could do more",
            (_, Level::Ok, true) => ": works",
            (_, Level::Note, false) => ": should work, but could do more",
            (_, Level::Ok, false) => ": should work",
        };
        let mut text = format!("{}{verdict}\n", self.about);
        for finding in self.iter() {
            let _ = writeln!(text, "  {:<4}  {}", finding.level.name(), finding.what);
            if let Some(advice) = &finding.advice {
                let _ = writeln!(text, "        -> {advice}");
            }
        }
        text
    }

    pub(super) fn json(&self) -> String {
        let line = |finding: &Finding| {
            json!({
                "about": self.about,
                "level": finding.level.name(),
                "what": finding.what,
                "advice": finding.advice,
            })
            .to_string()
                + "\n"
        };
        self.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_is_the_verdict() {
        let mut findings = Findings::new("udp");
        assert_eq!(findings.text(), "udp: should work\n");
        findings.note("small buffers", "enlarge them");
        findings.add_trial(Finding::ok("calls"));
        assert_eq!(findings.level(), Level::Note);
        let expected = "\
udp: works, but could do more
  note  small buffers
        -> enlarge them
  ok    calls
";
        assert_eq!(findings.text(), expected);
        findings.bad("no sockets", "get some");
        assert!(findings.text().starts_with("udp: does not work here\n"));
    }

    #[test]
    fn json_has_a_line_for_each_finding() {
        let mut findings = Findings::new("shm");
        findings.ok("fine");
        findings.bad("broken", "mend it");
        let lines: Vec<serde_json::Value> = findings
            .json()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines[0]["advice"], serde_json::Value::Null);
        assert_eq!(
            lines[1],
            json!({"about": "shm", "level": "bad", "what": "broken", "advice": "mend it"})
        );
    }
}
