//! `starling sim` from outside: it runs scenarios, prints rows with the documented keys, and writes
//! plots.

use std::process::{Command, Output};

use serde_json::Value;

fn starling(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_starling"))
        .args(arguments)
        .output()
        .expect("the binary was built for this test")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_scenario_prints_rows_with_the_papers_figures() {
    let arguments = ["sim", "run", "loss", "--quick", "--json", "--nodes", "12"];
    let output = starling(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("its own number of nodes"));
    let rows: Vec<Value> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("each line is one JSON object"))
        .collect();
    let row = rows
        .iter()
        .find(|row| row["case"] == "1e-4" && row["metric"] == "bandwidth");
    let row = row.expect("the row of table 4");
    assert_eq!(row["suite"], "loss");
    assert_eq!(row["unit"], "Gb/s");
    assert_eq!(row["paper"], 18.0);
    assert!(row["value"].as_f64().unwrap() > 18.0, "{row}");
}

#[test]
fn a_seed_determines_the_trace_and_a_plot_is_svg() {
    let directory = std::env::temp_dir().join(format!("starling-sim-test-{}", std::process::id()));
    std::fs::create_dir(&directory).expect("a directory of this test's own");
    let path = directory.to_str().expect("a path of plain characters");
    let table = || {
        let arguments = [
            "sim", "run", "loss", "--quick", "--seed", "9", "--svg", path,
        ];
        let output = starling(&arguments);
        let all = text(&output.stdout);
        let trace = all.split("trace ").nth(1).map(str::to_owned);
        (output.status.success(), trace)
    };
    let (first, second) = (table(), table());
    let picture = std::fs::read_to_string(directory.join("starling-sim-loss.svg"));
    std::fs::remove_dir_all(&directory).expect("it is there");
    assert!(first.0 && first.1.is_some());
    assert_eq!(first, second);
    assert!(picture.expect("the plot was written").starts_with("<svg"));
}

#[test]
fn a_hunt_ends_in_time_and_a_random_run_can_be_repeated_by_its_seed() {
    let output = starling(&[
        "sim",
        "hunt",
        "--minutes",
        "0.01",
        "--seed",
        "1",
        "--threads",
        "1",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("runs from seed 1"));
    let output = starling(&["sim", "run", "random", "--seed", "3"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("keeps every promise"));
    let output = starling(&["sim", "run", "random", "--seed", "3", "--json"]);
    for line in text(&output.stdout).lines() {
        let row: Value = serde_json::from_str(line).expect("each line is one JSON object");
        let mut keys: Vec<&String> = row.as_object().expect("an object").keys().collect();
        keys.sort();
        let expected = "case max metric min repetitions scheme suite system unit value";
        assert_eq!(keys, expected.split(' ').collect::<Vec<_>>());
    }
}

/// A hunt finds a planted bug and shrinks the run that shows it. The command that it prints replays
/// that run.
#[test]
fn a_hunt_prints_the_smallest_run_and_the_command_that_replays_it() {
    for (bug, promise) in [
        ("handler-twice", "at most once"),
        ("leaked-buffer", "buffers"),
        ("credit-off-by-one", "credits"),
    ] {
        let hunt = [
            "sim",
            "hunt",
            "--minutes",
            "5",
            "--seed",
            "1",
            "--plant",
            bug,
        ];
        let output = starling(&hunt);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        let errors = text(&output.stderr);
        let found = errors.lines().find(|line| line.contains("VIOLATION"));
        let found = found.expect("a violation").to_owned();
        assert!(found.contains(promise), "{found}");
        let replay = errors
            .lines()
            .find_map(|line| line.strip_prefix("replay: starling "));
        let replay: Vec<&str> = replay.expect("a command").split(' ').collect();
        assert!(replay.contains(&"--only"), "{replay:?}");
        let again = starling(&replay);
        assert_eq!(again.status.code(), Some(1));
        let again = text(&again.stderr);
        assert!(again.contains(&found), "{again}\nafter\n{found}");
    }
}

#[test]
fn a_wrong_option_is_status_2_and_the_error_names_it() {
    for (arguments, word) in [
        (&["sim", "run", "random", "--nodes", "5"][..], "--nodes"),
        (&["sim", "run", "loss", "--only", "calls=0"], "--only"),
        (&["sim", "run", "random", "--only", "call=0"], "LIST=PLACES"),
        (
            &[
                "sim",
                "run",
                "random",
                "--seed",
                "3",
                "--only",
                "calls=9999",
            ],
            "seed 3 does not have all of calls: it has",
        ),
        (&["sim", "hunt", "--plant", "nothing"], "handler-twice"),
        (&["sim", "hunt", "--minutes=-1"], "--minutes"),
        (&["sim", "run", "loss", "--nodes", "2"], "3..=1000"),
        (&["sim", "run", "loss", "--nodes", "0"], "3..=1000"),
        (&["sim", "run", "loss", "--nodes", "1000000"], "3..=1000"),
        (
            &["sim", "run", "loss", "--svg", "/nowhere/at/all"],
            "plots cannot be written to /nowhere/at/all",
        ),
        (
            &["sim", "run", "loss", "--svg", "/dev/null"],
            "plots cannot be written to /dev/null",
        ),
    ] {
        let output = starling(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = text(&output.stderr);
        assert!(said.contains(word), "{arguments:?}: {said}");
    }
}

#[test]
fn the_error_of_an_unknown_scenario_lists_the_scenarios() {
    let output = starling(&["sim", "run", "lost"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("incast"));
    let output = starling(&["sim", "list"]);
    assert!(text(&output.stdout).contains("all-to-all"));
}
