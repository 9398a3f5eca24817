//! `cargo xtask planted`: builds a copy of the sources with all planted bugs, and looks whether the tests of the
//! protocol, or a hunt, find each.

mod list;
mod look;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use list::Bug;
use look::{Found, Look};

const HELP: &str = "\
Usage: cargo xtask planted [--only PATTERN] [--minutes N] [--by tests|hunt]

Plants each bug of xtask/planted in a copy of the sources (target/planted), one at a time. The tests of
starling-proto, then a hunt of random runs, must find it. Fails if a bug is not found that is not named as
equivalent, or if a bug does not apply to the sources any more.

  --only PATTERN   The bugs whose names contain PATTERN.
  --minutes N      The time for each bug; 10 unless set. May be a fraction.
  --by tests|hunt  Only these; both unless set.";

/// The time for each bug, unless it is told.
const MINUTES: f64 = 10.0;

/// The module that the copy of the sources gets: which bug acts.
const MODULE: &str = "\
//! Which planted bug acts.

use std::sync::OnceLock;

/// Whether bug `number` acts.
pub(crate) fn acts(number: u32) -> bool {
    static ACTS: OnceLock<Option<u32>> = OnceLock::new();
    let read = || std::env::var(\"STARLING_PLANTED\").ok()?.parse().ok();
    *ACTS.get_or_init(read) == Some(number)
}
";

/// The options of the command line.
#[derive(Debug, PartialEq)]
struct Options {
    only: String,
    minutes: f64,
    tests: bool,
    hunt: bool,
}

impl Options {
    /// `None`: the command line makes no sense.
    fn parse(arguments: &[&str]) -> Option<Self> {
        let mut options = Self {
            only: String::new(),
            minutes: MINUTES,
            tests: true,
            hunt: true,
        };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            match (*word, *words.next()?) {
                ("--only", pattern) => options.only = pattern.to_owned(),
                ("--minutes", minutes) => options.minutes = minutes.parse().ok()?,
                ("--by", "tests") => options.hunt = false,
                ("--by", "hunt") => options.tests = false,
                _ => return None,
            }
        }
        let is_sound = options.minutes > 0.0 && options.minutes.is_finite();
        (is_sound && (options.tests || options.hunt)).then_some(options)
    }
}

pub(crate) fn run(arguments: &[&str]) -> ExitCode {
    if arguments == ["--help"] {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let Some(options) = Options::parse(arguments) else {
        eprintln!("{HELP}");
        return ExitCode::from(2);
    };
    let build = match Build::new() {
        Ok(build) => build,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let look = Look {
        build: &build,
        longest: Duration::from_secs_f64(options.minutes * 60.0),
        tests: options.tests,
        hunt: options.hunt,
        threads: None,
        stop: &AtomicBool::new(false),
    };
    let chosen = |(_, bug): &(usize, &Bug)| bug.name.contains(&options.only);
    let tally = look_for(&look, build.bugs.iter().enumerate().filter(chosen));
    println!("{}", tally.text());
    match tally.missed.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Looks for planted bugs, again and again, for as long as `end` is ahead. Whether each that was looked for was found.
pub(crate) fn run_until(build: &Build, end: Instant, stop: &AtomicBool) -> bool {
    let look = Look {
        build,
        longest: Duration::from_secs_f64(MINUTES * 60.0),
        tests: true,
        hunt: true,
        threads: Some(1),
        stop,
    };
    // Another one first each time, for the time may not be enough for all.
    let first = std::process::id() as usize % build.bugs.len();
    let bugs = build.bugs.iter().enumerate().cycle().skip(first);
    let tally = look_for(&look, bugs.take_while(|_| Instant::now() < end));
    println!("{}", tally.text());
    tally.missed.is_empty()
}

/// What became of the bugs that were looked for.
#[derive(Debug, Default)]
struct Tally {
    found: usize,
    equivalent: usize,
    /// Not found, and known not to be.
    open: usize,
    missed: Vec<String>,
}

impl Tally {
    fn text(&self) -> String {
        let Self {
            found,
            equivalent,
            open,
            missed,
        } = self;
        let mut text = format!(
            "planted bugs: {found} found, {equivalent} equivalent, {open} known not to be found, {} not found",
            missed.len()
        );
        for name in missed {
            text += &format!("\n  not found: {name}");
        }
        text
    }
}

fn look_for<'a>(look: &Look<'_>, bugs: impl Iterator<Item = (usize, &'a Bug)>) -> Tally {
    let mut tally = Tally::default();
    for (number, bug) in bugs {
        if let Some(reason) = &bug.equivalent {
            tally.equivalent += 1;
            println!("equivalent  {:36} {reason}", bug.name);
            continue;
        }
        match look.for_bug(number) {
            Found::By { what, after } => {
                tally.found += 1;
                println!(
                    "found       {:36} {:6.1} s  {what}",
                    bug.name,
                    after.as_secs_f64()
                );
            }
            Found::Nothing { .. } if bug.open => {
                tally.open += 1;
                println!("not found   {:36} as is known", bug.name);
            }
            Found::Nothing { after } => {
                println!("NOT FOUND   {:36} {:6.1} s", bug.name, after.as_secs_f64());
                tally.missed.push(bug.name.clone());
            }
            Found::Stopped => break,
        }
    }
    tally
}

/// The copy of the sources with all planted bugs, built.
pub(crate) struct Build {
    bugs: Vec<Bug>,
    copy: PathBuf,
    /// The programs of the protocol's tests.
    tests: Vec<PathBuf>,
    /// The program of the hunt.
    hunt: PathBuf,
}

impl Build {
    /// Copies the sources, plants all bugs, and builds.
    pub(crate) fn new() -> Result<Self, String> {
        let bugs = list::read(crate::root())?;
        let mut sources = list::plant(crate::root(), &bugs)?;
        let lib = "crates/proto/src/lib.rs";
        let original = std::fs::read_to_string(crate::root().join(lib)).map_err(text_of)?;
        sources.insert(lib.into(), original + "\nmod planted;\n");
        sources.insert("crates/proto/src/planted.rs".into(), MODULE.into());
        let copy = crate::target().join("planted");
        copy_sources(&copy, &sources)?;
        let target = crate::target().join("planted-build");
        let cargo = |arguments: &[&str]| {
            let mut cargo = crate::run::cargo(arguments);
            cargo.current_dir(&copy);
            cargo.env("CARGO_TARGET_DIR", &target);
            // Fast enough for a hunt, with the assertions of debug builds.
            cargo.env("CARGO_PROFILE_DEV_OPT_LEVEL", "2");
            cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
            // A condition for each bug leaves much that the lints are against.
            cargo.env("RUSTFLAGS", "--cap-lints=allow");
            cargo
        };
        let hunt = &mut cargo(&["build", "-p", "starling-cli", "--bin", "starling"]);
        if !crate::run::succeeds(hunt) {
            return Err("the sources with the planted bugs do not build".into());
        }
        let arguments = "test -p starling-proto --no-run --message-format=json-render-diagnostics";
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let mut tests = Vec::new();
        let built = crate::run::succeeds_with_lines(&mut cargo(&arguments), |line| {
            tests.extend(executable(line));
        });
        if !built || tests.is_empty() {
            return Err("the tests with the planted bugs do not build".into());
        }
        let hunt = target.join("debug/starling");
        Ok(Self {
            bugs,
            copy,
            tests,
            hunt,
        })
    }

    /// The program of the hunt; no bug acts in it unless it is told.
    pub(crate) fn hunt(&self) -> &Path {
        &self.hunt
    }

    /// `program`, with bug `number`.
    fn command(&self, program: &Path, number: usize) -> Command {
        let mut command = Command::new(program);
        // Failing tests leave files there.
        command.current_dir(self.copy.join("crates/proto"));
        command.env("STARLING_PLANTED", number.to_string());
        command
    }
}

/// The test program that a line of cargo's messages says was built.
fn executable(line: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    Some(PathBuf::from(message.get("executable")?.as_str()?))
}

/// Copies the files of the workspace, with `sources` in place of some. Files that are the same stay as they are,
/// so that they are not built again.
fn copy_sources(copy: &Path, sources: &list::Sources) -> Result<(), String> {
    let arguments = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let listed = crate::run::command("git", &arguments)
        .output()
        .map_err(text_of)?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let names = listed.lines().chain(sources.keys().map(String::as_str));
    for name in names {
        let from = crate::root().join(name);
        let bytes = match sources.get(name) {
            Some(text) => text.clone().into_bytes(),
            None if from.is_file() => std::fs::read(&from).map_err(text_of)?,
            None => continue,
        };
        let to = copy.join(name);
        if std::fs::read(&to).is_ok_and(|present| present == bytes) {
            continue;
        }
        let folder = to.parent().expect("a file is in a folder");
        std::fs::create_dir_all(folder).map_err(text_of)?;
        std::fs::write(&to, bytes).map_err(text_of)?;
    }
    Ok(())
}

fn text_of(error: std::io::Error) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let options = Options::parse(&["--only", "ids", "--minutes", "0.5", "--by", "hunt"]);
        let expected = Options {
            only: "ids".into(),
            minutes: 0.5,
            tests: false,
            hunt: true,
        };
        assert_eq!(options, Some(expected));
        for wrong in [
            &["--only"][..],
            &["--minutes", "0"],
            &["--by", "luck"],
            &["-x", "y"],
        ] {
            assert_eq!(Options::parse(wrong), None, "{wrong:?}");
        }
        let line = r#"{"reason":"compiler-artifact","executable":"/a/pair-1"}"#;
        assert_eq!(executable(line), Some(PathBuf::from("/a/pair-1")));
        assert_eq!(executable("{}"), None);
    }
}
