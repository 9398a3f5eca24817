//! Addresses of the form `shm://NAME?users=any&peers=N&peers_of_one=N&target=ADDRESS`.

use starling_io::{Fault, IoError};

use crate::ShmConfig;
use crate::handshake::MAX_TARGET_BYTES;

/// The address of a device by its name, and what it sets.
///
/// | setting | means |
/// |---|---|
/// | `users=any` | [`ShmConfig::allow_other_users`]: at both ends |
/// | `users=UID` | [`ShmConfig::other_user`]: at both ends, unless the other is root's |
/// | `peers=N` | [`ShmConfig::max_peers`] |
/// | `peers_of_one=N` | [`ShmConfig::max_peers_of_one`] |
/// | `target=ADDRESS`, the last one | whom to reach through the device with the name, see [`ShmConfig::takes_targets`] |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShmAddress<'a> {
    /// Without the settings.
    pub(crate) bare: &'a str,
    pub(crate) settings: Settings,
    /// All that follows `target=`, of any characters.
    pub(crate) target: Option<&'a str>,
}

/// What an address sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    users: Option<Users>,
    peers: Option<usize>,
    peers_of_one: Option<usize>,
}

/// Whom a device talks to besides its own user and root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Users {
    Any,
    One(u32),
}

impl<'a> ShmAddress<'a> {
    /// # Errors
    /// With [`Fault::Caller`]; the text says what is wrong and what to write.
    pub(crate) fn parse(address: &'a str) -> Result<Self, IoError> {
        let attempt = format!("parse {address:?}");
        let (bare, options) = match address.split_once('?') {
            Some((bare, options)) => (bare, Some(options)),
            None => (address, None),
        };
        socket_name(&attempt, bare)?;
        let mut settings = Settings::default();
        let (options, target) = split_target(options);
        for option in options.into_iter().flat_map(|options| options.split('&')) {
            settings.set(&attempt, option)?;
        }
        if target.is_some_and(|target| !(1..=MAX_TARGET_BYTES).contains(&target.len())) {
            return Err(IoError::new(
                Fault::Caller,
                &attempt,
                "its target is empty or too long",
                format!("write an address of at most {MAX_TARGET_BYTES} bytes behind target="),
            ));
        }
        Ok(Self {
            bare,
            settings,
            target,
        })
    }
}

impl ShmAddress<'_> {
    /// The address of the peer that it names: its name and target, without the settings.
    pub(crate) fn of_peer(&self) -> String {
        match self.target {
            Some(target) => format!("{}?target={target}", self.bare),
            None => self.bare.to_owned(),
        }
    }
}

/// Splits a target, which is the last option, from the others.
fn split_target(options: Option<&str>) -> (Option<&str>, Option<&str>) {
    let Some(options) = options else {
        return (None, None);
    };
    match options.strip_prefix("target=") {
        Some(target) => (None, Some(target)),
        None => match options.split_once("&target=") {
            Some((options, target)) => (Some(options), Some(target)),
            None => (Some(options), None),
        },
    }
}

impl Settings {
    fn set(&mut self, attempt: &str, option: &str) -> Result<(), IoError> {
        let malformed = |problem: String, remedy: &str| {
            Err(IoError::new(Fault::Caller, attempt, problem, remedy))
        };
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let is_twice = match key {
            "users" => self.users.is_some(),
            "peers" => self.peers.is_some(),
            "peers_of_one" => self.peers_of_one.is_some(),
            _ => {
                return malformed(
                    format!("its option {option:?} is unknown"),
                    "write ?users=any or UID, ?peers=N, ?peers_of_one=N, joined by &, and ?target=ADDRESS at the end",
                );
            }
        };
        if is_twice {
            return malformed(format!("it sets {key} twice"), "set it once");
        }
        let is_digits = value.bytes().all(|byte| byte.is_ascii_digit());
        if key == "users" {
            let one = value.parse().ok().filter(|_| is_digits).map(Users::One);
            self.users = one.or((value == "any").then_some(Users::Any));
            return match self.users {
                Some(_) => Ok(()),
                None => malformed(
                    format!("its users are {value:?}"),
                    "write users=any, users=UID, or leave it out for the user of the process and root",
                ),
            };
        }
        let number = value.parse().ok().filter(|number| is_digits && *number > 0);
        let Some(number) = number else {
            return malformed(
                format!("its {key} are not a number from 1 on"),
                "write ?peers=1024 or ?peers_of_one=512",
            );
        };
        match key {
            "peers" => self.peers = Some(number),
            _ => self.peers_of_one = Some(number),
        }
        Ok(())
    }

    /// The defaults, but for what the address sets.
    pub(crate) fn config(self) -> ShmConfig {
        let default = ShmConfig::default();
        let max_peers = self.peers.unwrap_or(default.max_peers);
        ShmConfig {
            allow_other_users: self.users == Some(Users::Any),
            other_user: match self.users {
                Some(Users::One(user)) => Some(user),
                _ => None,
            },
            max_peers,
            max_peers_of_one: self.peers_of_one.unwrap_or(default.max_peers_of_one),
            ..default
        }
    }
}

/// Checks that `address` is `shm://`, a valid name, and perhaps settings. It does not check whether a device has
/// that name.
///
/// # Errors
/// With [`Fault::Caller`]; the text says what is wrong and what to write.
pub fn check_address(address: &str) -> Result<(), IoError> {
    ShmAddress::parse(address).map(drop)
}

/// The abstract socket name of an address `shm://name`.
pub(crate) fn socket_name(attempt: &str, address: &str) -> Result<Vec<u8>, IoError> {
    let malformed = |problem: &str| {
        IoError::new(
            Fault::Caller,
            attempt,
            problem,
            "write shm://name, with a name of 1 to 80 letters, digits, dots, dashes and underscores",
        )
    };
    let name = address
        .strip_prefix("shm://")
        .ok_or_else(|| malformed("the address does not begin with shm://"))?;
    if name.is_empty() {
        return Err(malformed("the name is empty"));
    }
    if name.len() > 80 {
        return Err(malformed("the name is too long"));
    }
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if !name.bytes().all(fine) {
        return Err(malformed("the name has a character that is not allowed"));
    }
    Ok([b"starling-shm/", name.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_names_are_refused() {
        let bad = [
            "",
            "udp://x",
            "shm:/x",
            "shm://",
            "shm://a b",
            "shm://a/b",
            "shm://\0",
        ];
        for address in bad {
            let error = socket_name("open", address).unwrap_err();
            assert_eq!(error.fault, Fault::Caller, "{address}");
        }
        let long = format!("shm://{}", "x".repeat(81));
        assert!(socket_name("open", &long).is_err());
        assert_eq!(
            socket_name("open", "shm://kv-1.a_B").unwrap(),
            b"starling-shm/kv-1.a_B"
        );
    }

    #[test]
    fn an_address_sets_what_it_names_and_nothing_else() {
        let of = |address| ShmAddress::parse(address).unwrap();
        assert_eq!(of("shm://kv").bare, "shm://kv");
        assert_eq!(of("shm://kv").settings.config(), ShmConfig::default());
        let all = of("shm://kv?peers=7&users=any&peers_of_one=3");
        assert_eq!(all.bare, "shm://kv");
        let expected = ShmConfig {
            allow_other_users: true,
            max_peers: 7,
            max_peers_of_one: 3,
            ..ShmConfig::default()
        };
        assert_eq!(all.settings.config(), expected);
        let one = of("shm://kv?users=998").settings.config();
        assert_eq!((one.allow_other_users, one.other_user), (false, Some(998)));
        let same = of("shm://other?users=any&peers_of_one=3&peers=7");
        assert_eq!(all.settings, same.settings);
        assert_ne!(all.settings, of("shm://kv").settings);
    }

    #[test]
    fn a_target_is_all_that_follows_and_no_setting() {
        let of = |address| ShmAddress::parse(address).unwrap();
        let target = "xdp://eth0/10.0.0.7:1?queue=2&target=x";
        let address = format!("shm://service?target={target}");
        let only = of(&address);
        assert_eq!((only.bare, only.target), ("shm://service", Some(target)));
        assert_eq!(only.settings, Settings::default());
        let address = format!("shm://service?users=any&target={target}");
        let both = of(&address);
        assert_eq!((both.bare, both.target), ("shm://service", Some(target)));
        assert_eq!(both.settings.users, Some(Users::Any));
        assert_eq!(of("shm://service?users=any").target, None);
    }

    #[test]
    fn a_wrong_setting_is_named_with_what_to_write() {
        let cases = [
            ("shm://kv?", "its option \"\" is unknown"),
            ("shm://kv?ring=5", "its option \"ring=5\" is unknown"),
            ("shm://kv?users", "its users are \"\""),
            ("shm://kv?users=me", "its users are \"me\""),
            ("shm://kv?users=-1", "its users are \"-1\""),
            ("shm://kv?users=7&users=any", "it sets users twice"),
            ("shm://kv?users=any&users=any", "it sets users twice"),
            ("shm://kv?peers=0", "its peers are not a number"),
            ("shm://kv?peers=+5", "its peers are not a number"),
            ("shm://kv?peers=", "its peers are not a number"),
            ("shm://kv?peers=5&peers=5", "it sets peers twice"),
            (
                "shm://kv?peers_of_one=x",
                "its peers_of_one are not a number",
            ),
            ("shm://kv?target=", "its target is empty or too long"),
            ("shm://?peers=5", "the name is empty"),
            ("udp://kv?peers=5", "does not begin with shm://"),
        ];
        for (address, problem) in cases {
            let error = ShmAddress::parse(address).unwrap_err();
            assert_eq!(error.fault, Fault::Caller, "{address}");
            assert!(error.to_string().contains(problem), "{address}: {error}");
        }
    }
}
