//! Two looks at a service, and what happened between them.

use std::collections::HashMap;
use std::time::Instant;

use serde_json::{Value, json};
use starling::managed::ListingView;
use starling_service::PolicySpec;

use crate::ctl::quotas::size;
use crate::ctl::text::{number, row, table};

/// What a service has done, at a moment.
pub(super) struct Sample {
    at: Instant,
    policies: Vec<Policy>,
    datapaths: Vec<Datapath>,
    /// By number.
    runtimes: Vec<Runtime>,
}

#[derive(Clone, Copy)]
struct Runtime {
    applications: u32,
    datapaths: u32,
    busy_ns: u64,
}

struct Policy {
    name: String,
    kind: String,
    passed: u64,
    delayed: u64,
    refused: u64,
    held: u64,
}

struct Datapath {
    id: u64,
    side: String,
    program: String,
    process: Option<u32>,
    server: String,
    state: String,
    calls: u64,
    in_flight: u64,
    memory: u64,
    request_bytes: u64,
    response_bytes: u64,
}

impl Sample {
    pub(super) fn of(listing: ListingView<'_>) -> Self {
        let policies = listing.policies().iter().map(|policy| {
            let (name, kind) = match PolicySpec::parse(policy.policy()) {
                Ok(spec) => (spec.name, spec.kind),
                // A newer service.
                Err(_) => (policy.policy().to_owned(), String::new()),
            };
            Policy {
                name,
                kind,
                passed: policy.passed(),
                delayed: policy.delayed(),
                refused: policy.refused(),
                held: policy.held(),
            }
        });
        let datapaths = listing.datapaths().iter().map(|of| Datapath {
            id: of.id(),
            side: of.side().to_owned(),
            program: of.program().to_owned(),
            process: of.process_opt(),
            server: of.server().to_owned(),
            state: of.state().to_owned(),
            calls: of.calls(),
            in_flight: of.in_flight(),
            memory: of.memory(),
            request_bytes: of.request_bytes(),
            response_bytes: of.response_bytes(),
        });
        let runtimes = listing.runtimes().iter().map(|of| Runtime {
            applications: of.applications(),
            datapaths: of.datapaths(),
            busy_ns: of.busy_ns(),
        });
        Self {
            at: Instant::now(),
            policies: policies.collect(),
            datapaths: datapaths.collect(),
            runtimes: runtimes.collect(),
        }
    }
}

/// What happened between two looks, by the second.
pub(super) struct Rates<'a> {
    policies: Vec<(&'a Policy, [f64; 3])>,
    /// The busiest first.
    datapaths: Vec<(&'a Datapath, [f64; 3])>,
    /// With the share of the time in which each had work.
    runtimes: Vec<(Runtime, f64)>,
}

impl<'a> Rates<'a> {
    pub(super) fn between(before: &Sample, now: &'a Sample) -> Self {
        let seconds = (now.at - before.at).as_secs_f64().max(1e-9);
        // What was not there before, or has begun anew, has done all of it since.
        let by_second = |before: Option<[u64; 3]>, now: [u64; 3]| {
            let before = before.unwrap_or_default();
            let begins = before.iter().zip(&now).any(|(before, now)| before > now);
            let before = if begins { [0; 3] } else { before };
            [0, 1, 2].map(|at| (now[at] - before[at]) as f64 / seconds)
        };
        let of_policy = |policy: &Policy| [policy.passed, policy.delayed, policy.refused];
        let of_datapath = |of: &Datapath| [of.calls, of.request_bytes, of.response_bytes];
        let old: HashMap<&str, _> = (before.policies.iter())
            .map(|policy| (policy.name.as_str(), of_policy(policy)))
            .collect();
        let policies = now.policies.iter().map(|policy| {
            let before = old.get(policy.name.as_str()).copied();
            (policy, by_second(before, of_policy(policy)))
        });
        let old: HashMap<u64, _> = (before.datapaths.iter())
            .map(|of| (of.id, of_datapath(of)))
            .collect();
        let datapaths = now.datapaths.iter().map(|of| {
            let before = old.get(&of.id).copied();
            (of, by_second(before, of_datapath(of)))
        });
        let mut datapaths: Vec<_> = datapaths.collect();
        datapaths.sort_by(|(_, one), (_, other)| other[0].total_cmp(&one[0]));
        let runtimes = now.runtimes.iter().enumerate().map(|(number, of)| {
            let before = before.runtimes.get(number).map_or(0, |of| of.busy_ns);
            let busy_ns = of.busy_ns.checked_sub(before).unwrap_or(of.busy_ns);
            (*of, (busy_ns as f64 / 1e9 / seconds).min(1.0))
        });
        Self {
            policies: policies.collect(),
            runtimes: runtimes.collect(),
            datapaths,
        }
    }

    pub(super) fn json(&self) -> Value {
        let policy = |(policy, rates): &(&Policy, [f64; 3])| {
            json!({
                "name": policy.name,
                "kind": policy.kind,
                "passed_per_s": rates[0],
                "delayed_per_s": rates[1],
                "refused_per_s": rates[2],
                "held": policy.held,
            })
        };
        let datapath = |(of, rates): &(&Datapath, [f64; 3])| {
            json!({
                "id": of.id,
                "side": of.side,
                "program": of.program,
                "process": of.process,
                "server": of.server,
                "state": of.state,
                "calls_per_s": rates[0],
                "in_flight": of.in_flight,
                "memory": of.memory,
                "request_bytes_per_s": rates[1],
                "response_bytes_per_s": rates[2],
            })
        };
        let runtime = |(of, busy): &(Runtime, f64)| {
            json!({
                "applications": of.applications,
                "datapaths": of.datapaths,
                "busy": busy,
            })
        };
        json!({
            "runtimes": self.runtimes.iter().map(runtime).collect::<Vec<_>>(),
            "policies": self.policies.iter().map(policy).collect::<Vec<_>>(),
            "datapaths": self.datapaths.iter().map(datapath).collect::<Vec<_>>(),
        })
    }

    pub(super) fn text(&self) -> String {
        let mut rows = vec![row(&[
            "POLICY",
            "KIND",
            "PASSED/s",
            "DELAYED/s",
            "REFUSED/s",
            "HELD",
        ])];
        rows.extend(self.policies.iter().map(|(policy, rates)| {
            let rates = rates.map(rate);
            let mut cells = vec![policy.name.clone(), policy.kind.clone()];
            cells.extend(rates);
            cells.push(policy.held.to_string());
            cells
        }));
        let mut text = match rows.len() {
            1 => "no policies\n".to_owned(),
            _ => table(&rows),
        };
        let mut rows = vec![row(&[
            "SIDE",
            "PROGRAM",
            "PROCESS",
            "SERVER",
            "STATE",
            "CALLS/s",
            "IN FLIGHT",
            "MEMORY",
            "REQUESTS",
            "RESPONSES",
        ])];
        rows.extend(self.datapaths.iter().map(|(of, rates)| {
            vec![
                of.side.clone(),
                of.program.clone(),
                number(of.process),
                of.server.clone(),
                of.state.clone(),
                rate(rates[0]),
                of.in_flight.to_string(),
                size(of.memory),
                format!("{}/s", size(rates[1] as u64)),
                format!("{}/s", size(rates[2] as u64)),
            ]
        }));
        text.push('\n');
        text.push_str(&match rows.len() {
            1 => "no applications\n".to_owned(),
            _ => table(&rows),
        });
        if self.runtimes.len() > 1 {
            text.push('\n');
            text.push_str(&table(&self.runtime_rows()));
        }
        text
    }
}

impl Rates<'_> {
    fn runtime_rows(&self) -> Vec<Vec<String>> {
        let mut rows = vec![row(&["RUNTIME", "BUSY", "APPLICATIONS", "DATAPATHS"])];
        let runtimes = self.runtimes.iter().enumerate();
        rows.extend(runtimes.map(|(number, (of, busy))| {
            vec![
                number.to_string(),
                format!("{:.0}%", 100.0 * busy),
                of.applications.to_string(),
                of.datapaths.to_string(),
            ]
        }));
        rows
    }
}

/// Calls a second, as short as they can be read.
fn rate(by_second: f64) -> String {
    match by_second {
        r if r >= 1e6 => format!("{:.2} M", r / 1e6),
        r if r >= 1e4 => format!("{:.1} k", r / 1e3),
        r if r >= 10.0 || r == 0.0 => format!("{r:.0}"),
        r => format!("{r:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn policy(name: &str, passed: u64) -> Policy {
        Policy {
            name: name.to_owned(),
            kind: "null".to_owned(),
            passed,
            delayed: 0,
            refused: 0,
            held: 3,
        }
    }

    fn datapath(id: u64, calls: u64) -> Datapath {
        Datapath {
            id,
            side: "client".to_owned(),
            program: format!("program-{id}"),
            process: Some(7),
            server: "udp://h:1".to_owned(),
            state: "open".to_owned(),
            calls,
            in_flight: 2,
            memory: 2048,
            request_bytes: 100 * calls,
            response_bytes: 0,
        }
    }

    #[test]
    fn rates_are_what_happened_since_by_the_second() {
        let at = Instant::now();
        let sample = |after, policies, datapaths| Sample {
            at: at + Duration::from_secs(after),
            policies,
            datapaths,
            runtimes: vec![Runtime {
                applications: 1,
                datapaths: 2,
                busy_ns: after * 250_000_000,
            }],
        };
        let before = sample(
            0,
            vec![policy("a", 100), policy("b", 100)],
            vec![datapath(1, 1000), datapath(2, 50)],
        );
        let now = sample(
            2,
            vec![policy("a", 300), policy("b", 30), policy("c", 8)],
            vec![datapath(1, 1020), datapath(3, 60_000)],
        );
        let rates = Rates::between(&before, &now);
        let json = rates.json();
        // One was attached anew, one for the first time.
        let passed = [0, 1, 2].map(|at| json["policies"][at]["passed_per_s"].as_f64());
        assert_eq!(passed, [Some(100.0), Some(15.0), Some(4.0)]);
        // The busiest comes first.
        let calls = [0, 1].map(|at| json["datapaths"][at]["calls_per_s"].as_f64());
        assert_eq!(calls, [Some(30_000.0), Some(10.0)]);
        assert_eq!(json["datapaths"][1]["request_bytes_per_s"], json!(1000.0));
        let busy = json!([{"applications": 1, "datapaths": 2, "busy": 0.25}]);
        assert_eq!(json["runtimes"], busy);
        let text = rates.text();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("POLICY  KIND  PASSED/s"), "{text}");
        assert_eq!(
            lines[1].split_whitespace().collect::<Vec<_>>(),
            ["a", "null", "100", "0", "0", "3"]
        );
        let busiest = "client  program-3  7        udp://h:1  open   30.0 k   2          2 KiB   2.9 MiB/s  0/s";
        assert_eq!(lines[6], busiest, "{text}");
    }

    #[test]
    fn rates_are_short() {
        let texts = [0.0, 0.25, 9.9, 10.4, 9999.0, 12_345.0, 2_500_000.0].map(rate);
        assert_eq!(texts, ["0", "0.2", "9.9", "10", "9999", "12.3 k", "2.50 M"]);
    }
}
