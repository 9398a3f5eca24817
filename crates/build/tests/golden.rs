//! The generator makes the files in `tests/golden` from `tests/fixtures`; the other tests compile and
//! use them. After an intended change: `STARLING_UPDATE_GOLDEN=1 cargo test -p starling-build`.

use std::path::Path;

use starling_build::Config;

fn check(config: &Config, protos: &[&str], directory: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let golden = root.join("golden").join(directory);
    let protos: Vec<_> = protos
        .iter()
        .map(|proto| root.join("fixtures").join(proto))
        .collect();
    let files = config.generate(&protos, &[root.join("fixtures")]).unwrap();
    let again = config.generate(&protos, &[root.join("fixtures")]).unwrap();
    assert!(files == again, "the generator is not deterministic");

    if std::env::var_os("STARLING_UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(&golden).unwrap();
        for file in &files {
            std::fs::write(golden.join(&file.name), &file.content).unwrap();
        }
    }
    let mut names: Vec<_> = std::fs::read_dir(&golden)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let generated: Vec<_> = files.iter().map(|file| file.name.clone()).collect();
    assert_eq!(names, generated, "files in tests/golden/{directory}");
    for file in &files {
        let expected = std::fs::read(golden.join(&file.name)).unwrap();
        assert!(
            expected == file.content,
            "tests/golden/{directory}/{} has drifted",
            file.name
        );
    }
}

#[test]
fn messages_are_as_checked_in() {
    let config = Config::new().runtime_path("::starling_message");
    check(&config, &["everything.proto"], "messages");
}

#[test]
fn services_are_as_checked_in() {
    check(
        &Config::new().runtime_path("crate::stub"),
        &["kv.proto"],
        "services",
    );
}

#[test]
fn awkward_names_are_as_checked_in() {
    let config = Config::new().runtime_path("crate::stub");
    let protos = ["letters", "line", "numbered", "order", "prelude"];
    let protos = protos.map(|name| format!("names/{name}.proto"));
    check(&config, &protos.each_ref().map(String::as_str), "names");
}

#[test]
fn compiling_writes_the_same_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled");
    std::fs::create_dir_all(&out).unwrap();
    let config = Config::new().runtime_path("crate::stub").out_dir(&out);
    let (proto, include) = (root.join("fixtures/kv.proto"), root.join("fixtures"));
    config.compile(&[&proto], &[&include]).unwrap();
    for file in config.generate(&[&proto], &[&include]).unwrap() {
        assert_eq!(std::fs::read(out.join(file.name)).unwrap(), file.content);
    }
    // Nothing changed, so it writes nothing, and cargo compiles nothing again.
    let time = || {
        std::fs::metadata(out.join("kv.rs"))
            .unwrap()
            .modified()
            .unwrap()
    };
    let before = time();
    config.compile(&[&proto], &[&include]).unwrap();
    assert_eq!(time(), before);
    std::fs::remove_dir_all(&out).unwrap();
}

/// Only another process sees the output of a build script, so this test runs itself again as one.
#[test]
fn a_build_script_watches_its_files_wherever_it_writes() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("watched");
    let proto = fixtures.join("kv.proto");
    if std::env::var_os("STARLING_AS_BUILD_SCRIPT").is_some() {
        let config = Config::new().out_dir(&out);
        config.compile(&[&proto], &[&fixtures]).unwrap();
        return;
    }
    std::fs::create_dir_all(&out).unwrap();
    let run = |out_dir: Option<&Path>| {
        let name = "a_build_script_watches_its_files_wherever_it_writes";
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args([name, "--exact", "--nocapture"]);
        again
            .env("STARLING_AS_BUILD_SCRIPT", "1")
            .env_remove("OUT_DIR");
        again.envs(out_dir.map(|path| ("OUT_DIR", path)));
        let output = again.output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let line = format!("cargo:rerun-if-changed={}", proto.display());
    assert!(run(Some(env!("CARGO_TARGET_TMPDIR").as_ref())).contains(&line));
    assert!(!run(None).contains(&line));
    std::fs::remove_dir_all(&out).unwrap();
}

#[test]
fn packages_generated_elsewhere_are_referred_to_by_path() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let config = Config::new().extern_path("google.protobuf", "::elsewhere::wkt");
    let files = config
        .generate(&[root.join("everything.proto")], &[&root])
        .unwrap();
    let names: Vec<_> = files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["everything.rs", "packages.rs", "shared.v1.rs"]);
    let text = String::from_utf8(files[0].content.clone()).unwrap();
    assert!(text.contains("::elsewhere::wkt::TimestampView<'a>"));
    assert!(text.contains("super::super::shared::v1::Unit"));
}
