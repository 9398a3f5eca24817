//! The generated files in `tests/golden` are what the generator makes of `tests/fixtures`, and the other
//! tests compile and use them. After a wanted change: `STARLING_UPDATE_GOLDEN=1 cargo test -p starling-build`.

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
