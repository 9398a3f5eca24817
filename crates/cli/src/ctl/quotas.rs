//! Quotas in the file of a service, and sizes as people write them.

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use starling_service::{Quota, Quotas};

/// The units of sizes.
const UNITS: [(&str, u64); 4] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// `quotas` of a service's file. What is not there is as by default.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QuotaSettings {
    calls: Option<usize>,
    datapaths: Option<usize>,
    memory: Option<Size>,
    #[serde(default)]
    user: UserSettings,
}

/// Those of all applications of one user together.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct UserSettings {
    calls: Option<usize>,
    datapaths: Option<usize>,
    memory: Option<Size>,
}

/// A number and a unit: `64MiB`.
#[derive(Clone, Copy, Debug)]
struct Size(usize);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_size(&text).map(Self).ok_or_else(|| {
            D::Error::custom(format!(
                "{text:?} is no size: write a number and a unit, like 512KiB, 64MiB, 1GiB"
            ))
        })
    }
}

fn parse_size(text: &str) -> Option<usize> {
    let (unit, bytes) = UNITS.iter().find(|(unit, _)| text.ends_with(unit))?;
    let number = text.strip_suffix(unit)?.trim_end();
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let bytes = number.parse::<u64>().ok()?.checked_mul(*bytes)?;
    usize::try_from(bytes).ok()
}

/// A size, as short as it can be read.
pub(super) fn size(bytes: u64) -> String {
    let unit = UNITS.iter().find(|(_, unit)| bytes >= *unit);
    match unit {
        Some((name, unit)) if bytes.is_multiple_of(*unit) => format!("{} {name}", bytes / unit),
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => "0".to_owned(),
    }
}

impl QuotaSettings {
    pub(crate) fn quotas(&self) -> Quotas {
        let default = Quotas::default();
        let bytes = |size: Option<Size>| size.map(|size| size.0);
        let with = |quota: Quota,
                    calls: Option<usize>,
                    datapaths: Option<usize>,
                    memory: Option<usize>| Quota {
            calls: calls.unwrap_or(quota.calls),
            datapaths: datapaths.unwrap_or(quota.datapaths),
            memory: memory.unwrap_or(quota.memory),
        };
        let user = &self.user;
        Quotas {
            application: with(
                default.application,
                self.calls,
                self.datapaths,
                bytes(self.memory),
            ),
            user: with(default.user, user.calls, user.datapaths, bytes(user.memory)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_number_and_a_unit() {
        assert_eq!(parse_size("64MiB"), Some(64 << 20));
        assert_eq!(parse_size("1 GiB"), Some(1 << 30));
        assert_eq!(parse_size("0B"), Some(0));
        for text in [
            "",
            "64",
            "MiB",
            "-1MiB",
            "+1MiB",
            "1.5MiB",
            "1MB",
            "99999999999GiB",
        ] {
            assert_eq!(parse_size(text), None, "{text:?}");
        }
        let sizes = [0, 7, 1024, 1536, 64 << 20, 3 << 30].map(size);
        assert_eq!(sizes, ["0", "7 B", "1 KiB", "1.5 KiB", "64 MiB", "3 GiB"]);
    }

    #[test]
    fn what_is_not_set_is_as_by_default() {
        let read =
            |text| serde_saphyr::from_str::<QuotaSettings>(text).map(|settings| settings.quotas());
        assert_eq!(read("{}").expect("nothing is set"), Quotas::default());
        let quotas = read("{calls: 10, memory: 1MiB, user: {datapaths: 7}}").expect("settings");
        let default = Quotas::default();
        assert_eq!(
            [
                quotas.application.calls,
                quotas.application.memory,
                quotas.user.datapaths
            ],
            [10, 1 << 20, 7]
        );
        assert_eq!(quotas.application.datapaths, default.application.datapaths);
        assert_eq!(quotas.user.calls, default.user.calls);
        for (text, expected) in [
            ("{memory: 5}", "is no size"),
            ("{memory: lots}", "is no size"),
            ("{calls: -1}", "calls"),
            ("{call: 1}", "unknown field"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
