//! Adapters: the devices by which applications call, with the endpoints on them. What operators set of them.
//!
//! ```json
//! {"gso": false, "congestion": "timely"}
//! ```

use serde_json::{Map, Value};
use starling_endpoint::{Congestion, EndpointConfig, Status};
use starling_io_tcp::TcpConfig;
use starling_io_udp::UdpConfig;
use starling_io_xdp::XdpConfig;

/// Bytes of the kernel's buffers, at most.
const MOST_BUFFERED: u64 = 1 << 30;

/// A setting, and the kinds of devices that have it.
struct Setting {
    name: &'static str,
    kinds: &'static [&'static str],
    takes: fn(&Value) -> bool,
    must: &'static str,
}

static SETTINGS: &[Setting] = &[
    Setting {
        name: "congestion",
        kinds: &["udp", "tcp", "shm", "xdp"],
        takes: |value| congestion(value).is_some(),
        must: "\"off\", \"timely\" or \"dctcp\"",
    },
    Setting {
        name: "credits",
        kinds: &["udp", "tcp", "shm", "xdp"],
        takes: |value| is_within(value, 1, 1024),
        must: "1 to 1024 packets",
    },
    Setting {
        name: "ecn",
        kinds: &["udp", "xdp"],
        takes: Value::is_boolean,
        must: "true or false",
    },
    Setting {
        name: "gro",
        kinds: &["udp"],
        takes: Value::is_boolean,
        must: "true or false",
    },
    Setting {
        name: "gso",
        kinds: &["udp"],
        takes: Value::is_boolean,
        must: "true or false",
    },
    Setting {
        name: "max_datagram",
        kinds: &["udp"],
        takes: |value| is_within(value, 512, 65_507),
        must: "512 to 65,507 bytes",
    },
    Setting {
        name: "max_datagram",
        kinds: &["tcp"],
        takes: |value| is_within(value, 512, 65_559),
        must: "512 to 65,559 bytes",
    },
    Setting {
        name: "rx_buffer_bytes",
        kinds: &["udp"],
        takes: |value| is_within(value, 4096, MOST_BUFFERED),
        must: "4096 to 2^30",
    },
    Setting {
        name: "tx_buffer_bytes",
        kinds: &["udp"],
        takes: |value| is_within(value, 4096, MOST_BUFFERED),
        must: "4096 to 2^30",
    },
];

fn is_within(value: &Value, least: u64, most: u64) -> bool {
    value
        .as_u64()
        .is_some_and(|number| (least..=most).contains(&number))
}

fn congestion(value: &Value) -> Option<Congestion> {
    match value.as_str()? {
        "off" => Some(Congestion::Off),
        "timely" => Some(Congestion::Timely),
        "dctcp" => Some(Congestion::Dctcp),
        _ => None,
    }
}

/// What operators have set of an adapter, each checked. The rest is as the device and the service have it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AdapterSettings(Map<String, Value>);

impl AdapterSettings {
    /// Those of a kind of device, with changes: an object in JSON, in which null takes a setting back. Empty: none.
    ///
    /// # Errors
    /// What is wrong with which setting.
    pub(crate) fn changed(&self, kind: &str, json: &str) -> Result<Self, Status> {
        let wrong = |problem: String| Status::invalid_argument(format!("settings: {problem}"));
        let mut settings = self.0.clone();
        if json.is_empty() {
            return Ok(Self(settings));
        }
        let changes: Map<String, Value> =
            serde_json::from_str(json).map_err(|error| wrong(error.to_string()))?;
        let of_kind = || SETTINGS.iter().filter(|it| it.kinds.contains(&kind));
        for (name, value) in changes {
            let Some(setting) = of_kind().find(|it| it.name == name) else {
                let names: Vec<_> = of_kind().map(|it| it.name).collect();
                let have = names.join(", ");
                return Err(wrong(format!(
                    "{kind} has none named {name:?}: it has {have}"
                )));
            };
            if value.is_null() {
                settings.remove(&name);
                continue;
            }
            if !(setting.takes)(&value) {
                return Err(wrong(format!(
                    "{name} is {value}, it must be {}",
                    setting.must
                )));
            }
            settings.insert(name, value);
        }
        Ok(Self(settings))
    }

    /// As JSON.
    pub(crate) fn to_json(&self) -> String {
        Value::Object(self.0.clone()).to_string()
    }

    fn flag(&self, name: &str) -> Option<bool> {
        self.0.get(name)?.as_bool()
    }

    fn number(&self, name: &str) -> Option<usize> {
        usize::try_from(self.0.get(name)?.as_u64()?).ok()
    }

    /// An endpoint with them.
    pub(crate) fn endpoint(&self, of_service: &EndpointConfig) -> EndpointConfig {
        let mut config = of_service.clone();
        let protocol = &mut config.protocol;
        if let Some(congestion) = self.0.get("congestion").and_then(congestion) {
            protocol.congestion = congestion;
        }
        if let Some(credits) = self.number("credits") {
            protocol.credits = credits as u16;
        }
        config
    }

    pub(crate) fn udp(&self) -> UdpConfig {
        let default = UdpConfig::default();
        UdpConfig {
            ecn: self.flag("ecn").unwrap_or(default.ecn),
            gro: self.flag("gro").unwrap_or(default.gro),
            gso: self.flag("gso").unwrap_or(default.gso),
            max_datagram: self.number("max_datagram").or(default.max_datagram),
            rx_buffer_bytes: self
                .number("rx_buffer_bytes")
                .unwrap_or(default.rx_buffer_bytes),
            tx_buffer_bytes: self
                .number("tx_buffer_bytes")
                .unwrap_or(default.tx_buffer_bytes),
            reuse_port: default.reuse_port,
        }
    }

    pub(crate) fn tcp(&self) -> TcpConfig {
        let default = TcpConfig::default();
        TcpConfig {
            max_datagram: self.number("max_datagram").unwrap_or(default.max_datagram),
            ..default
        }
    }

    pub(crate) fn xdp(&self) -> XdpConfig {
        let default = XdpConfig::default();
        XdpConfig {
            ecn: self.flag("ecn").unwrap_or(default.ecn),
            ..default
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: &str, json: &str) -> Result<AdapterSettings, String> {
        let settings = AdapterSettings::default().changed(kind, json);
        settings.map_err(|status| status.message().to_owned())
    }

    #[test]
    fn settings_reach_the_device_and_its_endpoint() {
        let json = r#"{"gso":false,"max_datagram":1400,"congestion":"timely","credits":7}"#;
        let settings = of("udp", json).expect("settings");
        let udp = settings.udp();
        assert_eq!(
            (udp.gso, udp.gro, udp.max_datagram),
            (false, true, Some(1400))
        );
        let protocol = settings.endpoint(&EndpointConfig::default()).protocol;
        assert_eq!(
            (protocol.congestion, protocol.credits),
            (Congestion::Timely, 7)
        );
        let changed = settings.changed("udp", r#"{"gso":null,"credits":9}"#);
        let changed = changed.expect("settings");
        assert_eq!(
            (changed.udp().gso, changed.udp().max_datagram),
            (true, Some(1400))
        );
        assert_eq!(
            changed.to_json(),
            r#"{"congestion":"timely","credits":9,"max_datagram":1400}"#
        );
        assert_eq!(settings.changed("udp", ""), Ok(settings));
        assert_eq!(
            of("tcp", r#"{"max_datagram":900}"#).map(|it| it.tcp().max_datagram),
            Ok(900)
        );
        assert_eq!(
            of("xdp", r#"{"ecn":false}"#).map(|it| it.xdp().ecn),
            Ok(false)
        );
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (kind, json, said) in [
            ("udp", "7", "expected a map"),
            ("udp", "{", "EOF"),
            (
                "udp",
                r#"{"gsO":true}"#,
                "udp has none named \"gsO\": it has congestion",
            ),
            ("shm", r#"{"gso":true}"#, "shm has none named \"gso\""),
            ("udp", r#"{"gso":1}"#, "gso is 1, it must be true or false"),
            (
                "udp",
                r#"{"credits":0}"#,
                "credits is 0, it must be 1 to 1024",
            ),
            ("udp", r#"{"credits":-1}"#, "credits is -1"),
            ("udp", r#"{"max_datagram":65559}"#, "512 to 65,507"),
            ("tcp", r#"{"max_datagram":511}"#, "512 to 65,559"),
            ("xdp", r#"{"congestion":"cubic"}"#, "\"timely\" or"),
        ] {
            let error = of(kind, json).expect_err(json);
            assert!(
                error.starts_with("settings: ") && error.contains(said),
                "{error}"
            );
        }
    }
}
