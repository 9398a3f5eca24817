//! What is not supported is refused with the file and the element; so are names that clash in Rust.

use std::path::PathBuf;

use starling_build::{Config, Error};

/// Compiles a file of this content; `name` keeps the tests' files apart.
fn compile(name: &str, content: &str) -> Result<(), Error> {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("test.proto");
    std::fs::write(&file, content).unwrap();
    let result = Config::new().generate(&[file], &[&directory]).map(drop);
    std::fs::remove_dir_all(&directory).unwrap();
    result
}

fn error(name: &str, content: &str) -> String {
    compile(name, content).unwrap_err().to_string()
}

#[test]
fn proto2_is_refused() {
    let text = error("proto2", "syntax = \"proto2\"; package p; message M {}");
    assert_eq!(
        text,
        "test.proto: p: only proto3 is supported; start the file with `syntax = \"proto3\";`"
    );
}

#[test]
fn streaming_names_the_method() {
    let text = error(
        "streaming",
        "syntax = \"proto3\"; package p; message M {}
         service S { rpc One(M) returns (M); rpc Many(M) returns (stream M); }",
    );
    assert_eq!(
        text,
        "test.proto: p.S.Many: streaming is not supported yet; use a unary method"
    );
}

#[test]
fn an_unknown_mode_is_refused() {
    let text = error(
        "mode",
        "syntax = \"proto3\"; package p; import \"starling/options.proto\"; message M {}
         service S { rpc One(M) returns (M) { option (starling.mode) = LATER; } }",
    );
    assert!(text.contains("LATER"), "{text}");
}

#[test]
fn mistakes_have_a_place() {
    let text = error(
        "mistake",
        "syntax = \"proto3\";\nmessage M { Missing m = 1; }",
    );
    assert!(
        text.contains("test.proto:2") && text.contains("Missing"),
        "{text}"
    );
    let text = error("missing", "syntax = \"proto3\"; import \"no/such.proto\";");
    assert!(text.contains("no/such.proto"), "{text}");
}

#[test]
fn clashing_types_name_both() {
    let text = error(
        "clash",
        "syntax = \"proto3\"; package p; message Foo {} message FooView {}",
    );
    assert_eq!(
        text,
        "test.proto: p.FooView: the name `FooView` in Rust is already taken by p.Foo"
    );
    let text = error(
        "clash_service",
        "syntax = \"proto3\"; package p; message SClient {} service S { rpc A(SClient) returns (SClient); }",
    );
    assert_eq!(
        text,
        "test.proto: p.S: the name `SClient` in Rust is already taken by p.SClient"
    );
}

#[test]
fn clashing_methods_are_refused() {
    let text = error(
        "clash_method",
        "syntax = \"proto3\"; package p; message M {}
         service S { rpc GetIt(M) returns (M); rpc get_it(M) returns (M); rpc GET_IT(M) returns (M); }",
    );
    assert!(
        text.contains("p.S.GET_IT: the method name `get_it_call`"),
        "{text}"
    );
}

#[test]
fn options_of_others_are_no_obstacle() {
    let result = compile(
        "options",
        "syntax = \"proto3\"; package p; import \"google/protobuf/descriptor.proto\";
         extend google.protobuf.FieldOptions { string note = 50000; }
         message M { int32 a = 1 [(p.note) = \"x\"]; }",
    );
    assert!(result.is_ok(), "{result:?}");
}
