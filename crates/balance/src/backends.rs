//! A resolver's answer, checked, and what changed since the last one.
//!
//! A resolver is code of others, or asks others: it may name a backend twice, name none, too many, or
//! something that is no address. What can be used is used, and what was left out is said.

use std::collections::{HashMap, HashSet};
use std::fmt;

/// The most backends of one channel.
pub const MAX_BACKENDS: usize = 4096;
/// The most bytes of an address, and of a key.
const MAX_BYTES: usize = 1024;
/// As many of the names that were left out are quoted in a text.
const QUOTED: usize = 3;

/// A backend, as a resolver names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Resolved {
    /// Its address: `udp://10.0.0.7:9000`.
    pub address: String,
    /// Its name for hashing, if that is not its address: one that it keeps when its address changes.
    pub hash_key: Option<String>,
}

impl From<String> for Resolved {
    fn from(address: String) -> Self {
        let hash_key = None;
        Self { address, hash_key }
    }
}

impl From<&str> for Resolved {
    fn from(address: &str) -> Self {
        address.to_owned().into()
    }
}

/// What of an answer was not used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejected {
    /// Backends that were named before, by address.
    pub duplicates: usize,
    /// Backends beyond [`MAX_BACKENDS`].
    pub too_many: usize,
    /// Texts that are no addresses, with the reason; the first few.
    pub malformed: Vec<(String, String)>,
    /// How many there were of these.
    pub malformed_count: usize,
}

impl Rejected {
    /// Whether all was used.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn add_malformed(&mut self, text: &str, why: String) {
        self.malformed_count += 1;
        if self.malformed.len() < QUOTED {
            self.malformed.push((text.chars().take(80).collect(), why));
        }
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.malformed_count > 0 {
            let quoted = self.malformed.iter();
            let quoted: Vec<_> = quoted
                .map(|(text, why)| format!("{text:?}: {why}"))
                .collect();
            let (count, quoted) = (self.malformed_count, quoted.join("; "));
            parts.push(format!("{count} malformed ({quoted})"));
        }
        if self.duplicates > 0 {
            parts.push(format!("{} duplicates", self.duplicates));
        }
        if self.too_many > 0 {
            parts.push(format!("{} beyond {MAX_BACKENDS}", self.too_many));
        }
        f.write_str(&parts.join(", "))
    }
}

/// The backends of a channel, each with an id that no other one of the channel ever has.
#[derive(Clone, Debug, Default)]
pub struct Backends {
    list: Vec<(u64, Resolved)>,
    last_id: u64,
}

/// How an answer changed the backends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// They are new.
    pub added: Vec<(u64, Resolved)>,
    /// They are gone.
    pub removed: Vec<u64>,
    /// The order changed, or the keys of some.
    pub moved: bool,
}

impl Change {
    /// Whether all is as before.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Backends {
    /// The backends in the order of the last answer, with their ids.
    pub fn list(&self) -> &[(u64, Resolved)] {
        &self.list
    }

    /// Takes in an answer. `check` says whether a text is an address. A backend that was there before keeps
    /// its id.
    pub fn update(
        &mut self,
        answer: impl IntoIterator<Item = Resolved>,
        check: impl Fn(&str) -> Result<(), String>,
    ) -> (Change, Rejected) {
        let mut rejected = Rejected::default();
        let mut change = Change::default();
        let before = std::mem::take(&mut self.list);
        let order: Vec<u64> = before.iter().map(|(id, _)| *id).collect();
        let named = |(id, resolved): (u64, Resolved)| (resolved.address.clone(), (id, resolved));
        let mut known: HashMap<String, (u64, Resolved)> = before.into_iter().map(named).collect();
        let mut seen = HashSet::new();
        for resolved in answer {
            if let Err(why) = check_backend(&resolved, &check) {
                rejected.add_malformed(&resolved.address, why);
            } else if seen.contains(&resolved.address) {
                rejected.duplicates += 1;
            } else if self.list.len() >= MAX_BACKENDS {
                rejected.too_many += 1;
            } else {
                seen.insert(resolved.address.clone());
                let id = if let Some((id, before)) = known.remove(&resolved.address) {
                    change.moved |= before != resolved;
                    id
                } else {
                    self.last_id += 1;
                    change.added.push((self.last_id, resolved.clone()));
                    self.last_id
                };
                self.list.push((id, resolved));
            }
        }
        change.removed = known.into_values().map(|(id, _)| id).collect();
        change.removed.sort_unstable();
        change.moved |= !self.list.iter().map(|(id, _)| *id).eq(order);
        (change, rejected)
    }
}

fn check_backend(
    resolved: &Resolved,
    check: impl Fn(&str) -> Result<(), String>,
) -> Result<(), String> {
    let key = resolved.hash_key.as_deref().unwrap_or_default();
    match resolved.address.len().max(key.len()) > MAX_BYTES {
        true => Err(format!("longer than {MAX_BYTES} bytes")),
        false => check(&resolved.address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(names: &[&str]) -> Vec<Resolved> {
        let named = |name: &&str| Resolved {
            address: format!("udp://{name}"),
            hash_key: None,
        };
        names.iter().map(named).collect()
    }

    fn check(address: &str) -> Result<(), String> {
        match address.starts_with("udp://") && !address.contains('?') {
            true => Ok(()),
            false => Err("no address".to_owned()),
        }
    }

    fn ids(backends: &Backends) -> Vec<(u64, &str)> {
        let list = backends.list().iter();
        list.map(|(id, resolved)| (*id, &resolved.address[6..]))
            .collect()
    }

    #[test]
    fn backends_keep_their_ids_and_changes_are_said() {
        let mut backends = Backends::default();
        let (change, rejected) = backends.update(resolved(&["a", "b"]), check);
        assert_eq!(change.added.len(), 2);
        assert!(rejected.is_empty() && change.removed.is_empty());
        assert_eq!(ids(&backends), [(1, "a"), (2, "b")]);
        let (change, _) = backends.update(resolved(&["a", "b"]), check);
        assert!(change.is_empty());
        let (change, _) = backends.update(resolved(&["b", "a"]), check);
        assert!(change.moved && change.added.is_empty());
        let (change, _) = backends.update(resolved(&["c", "b"]), check);
        assert_eq!(change.removed, [1]);
        assert_eq!(ids(&backends), [(3, "c"), (2, "b")]);
        // One that comes back is another one.
        backends.update(resolved(&["a"]), check);
        assert_eq!(ids(&backends), [(4, "a")]);
        let mut keyed = resolved(&["a"]);
        keyed[0].hash_key = Some("pod-0".to_owned());
        assert!(backends.update(keyed, check).0.moved);
        let (change, _) = backends.update(Vec::new(), check);
        assert_eq!(change.removed, [4]);
        assert!(backends.list().is_empty());
    }

    #[test]
    fn duplicates_and_garbage_are_left_out_and_said() {
        let mut backends = Backends::default();
        let mut answer = resolved(&["a", "b", "a", "?", "a"]);
        for address in ["", "http://x", "udp", &"udp://".repeat(1000)] {
            answer.push(Resolved {
                address: address.to_owned(),
                hash_key: None,
            });
        }
        let (_, rejected) = backends.update(answer, check);
        assert_eq!(ids(&backends), [(1, "a"), (2, "b")]);
        assert_eq!((rejected.duplicates, rejected.malformed_count), (2, 5));
        let text = rejected.to_string();
        let expected = "5 malformed (\"udp://?\": no address; \"\": no address; \"http://x\": no address), \
                        2 duplicates";
        assert_eq!(text, expected);
    }

    #[test]
    fn no_more_than_the_bound_are_used() {
        let names: Vec<String> = (0..MAX_BACKENDS + 10).map(|i| i.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut backends = Backends::default();
        let (_, rejected) = backends.update(resolved(&names), check);
        assert_eq!(backends.list().len(), MAX_BACKENDS);
        assert_eq!(rejected.too_many, 10);
        assert_eq!(rejected.to_string(), "10 beyond 4096");
    }
}
