//! Unsupported elements and clashing names are refused, with the place and the element.

use std::path::PathBuf;

use starling_build::{Config, Error};

/// Compiles a file with this content; `name` keeps the files of the tests apart.
fn compile(name: &str, content: &str) -> Result<(), Error> {
    compile_files(&Config::new(), name, &[("test.proto", content)])
}

fn compile_files(config: &Config, name: &str, files: &[(&str, &str)]) -> Result<(), Error> {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&directory).unwrap();
    let write = |(file, content): &(&str, &str)| {
        let path = directory.join(file);
        std::fs::write(&path, content).unwrap();
        path
    };
    let paths: Vec<_> = files.iter().map(write).collect();
    let result = config.generate(&paths, &[&directory]).map(drop);
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
        "test.proto:1:1: only proto3 is supported; start the file with `syntax = \"proto3\";`"
    );
}

#[test]
fn build_scripts_print_errors_as_text() {
    // The form that build.rs prints when `main` returns the error.
    let error = compile("debug", "syntax = \"proto2\"; message M {}").unwrap_err();
    assert_eq!(format!("{error:?}"), error.to_string());
}

#[test]
fn an_unknown_mode_is_refused() {
    let text = error(
        "mode",
        "syntax = \"proto3\"; package p; import \"starling/options.proto\"; message M {}
         service S { rpc One(M) returns (M) { option (starling.mode) = LATER; } }",
    );
    assert!(
        text.ends_with("found 'LATER'; it is INLINE, WORKER or NESTED"),
        "{text}"
    );
}

#[test]
fn errors_of_mistakes_have_a_place() {
    let text = error(
        "mistake",
        "syntax = \"proto3\";\nmessage M { Missing m = 1; }",
    );
    assert!(
        text.contains("test.proto:2") && text.contains("Missing"),
        "{text}"
    );
    let text = error("missing", "syntax = \"proto3\"; import \"no/such.proto\";");
    assert!(
        text.contains("test.proto:1:20: import 'no/such.proto' not found; searched"),
        "{text}"
    );
}

#[test]
fn the_error_of_an_unknown_type_says_what_to_import() {
    let field = |of: &str| format!("syntax = \"proto3\";\nmessage M {{ {of} m = 1; }}");
    let text = error("forgot_google", &field("google.protobuf.Timestamp"));
    assert!(
        text.ends_with("add `import \"google/protobuf/timestamp.proto\";`"),
        "{text}"
    );
    let text = error(
        "forgot_options",
        "syntax = \"proto3\"; message M {}
         service S { rpc A(M) returns (M) { option (starling.mode) = WORKER; } }",
    );
    assert!(
        text.ends_with("add `import \"starling/options.proto\";`"),
        "{text}"
    );
    let text = error("forgot_own", &field("Missing"));
    assert!(
        text.ends_with("declare it, or import the file that declares it"),
        "{text}"
    );
}

#[test]
fn other_syntaxes_and_a_package_of_the_generated_name_are_refused() {
    for (name, content) in [
        ("none", "message M {}"),
        ("edition", "edition = \"2023\"; message M {}"),
    ] {
        let text = error(name, content);
        assert!(text.contains("only proto3 is supported"), "{text}");
    }
    let text = error("packages", "syntax = \"proto3\"; package packages;");
    assert!(
        text.starts_with("test.proto:1:20: packages: the file `packages.rs`"),
        "{text}"
    );
}

#[test]
fn names_of_underscores_only_are_supported() {
    let result = compile(
        "underscores",
        "syntax = \"proto3\"; package p; message _ { string _ = 1; }
         enum __E { __ = 0; } service __S { rpc _(_) returns (_); }",
    );
    assert!(result.is_ok(), "{result:?}");
}

#[test]
fn the_error_of_clashing_types_names_both() {
    let text = error(
        "clash",
        "syntax = \"proto3\"; package p; message Foo {} message FooView {}",
    );
    assert_eq!(
        text,
        "test.proto:1:46: p.FooView: the name `FooView` in Rust is already taken by test.proto:1:31: p.Foo; \
         rename one of them in its file"
    );
    let text = error(
        "clash_service",
        "syntax = \"proto3\"; package p; message SClient {} service S { rpc A(SClient) returns (SClient); }",
    );
    assert_eq!(
        text,
        "test.proto:1:50: p.S: the name `SClient` in Rust is already taken by test.proto:1:31: p.SClient; \
         rename one of them in its file"
    );
}

#[test]
fn the_layout_of_a_map_entry_can_clash_too() {
    let text = error(
        "clash_entry",
        "syntax = \"proto3\"; package p;
         message M { message Foo_Entry {} map<string, int32> foo = 1; }",
    );
    assert!(
        text.contains("the name `FOO_ENTRY_LAYOUT` in Rust is already taken by test.proto"),
        "{text}"
    );
}

#[test]
fn the_error_of_packages_with_one_module_names_both() {
    let files = [
        (
            "a.proto",
            "syntax = \"proto3\"; package a.fooBar; message M {}",
        ),
        (
            "b.proto",
            "syntax = \"proto3\"; package a.foo_bar; message N {}",
        ),
    ];
    let error = compile_files(&Config::new(), "clash_packages", &files).unwrap_err();
    assert_eq!(
        error.to_string(),
        "b.proto:1:20: a.foo_bar: the name `a::foo_bar` in Rust is already taken by a.proto:1:20: a.fooBar; \
         rename one of them in its file"
    );
}

#[test]
fn the_error_of_a_name_in_a_message_and_a_package_names_both() {
    let order = "syntax = \"proto3\"; package shop; message Order { enum State { OPEN = 0; } }";
    let of_package = |content| {
        let content = format!("syntax = \"proto3\"; package shop.order; {content}");
        let files = [("order.proto", order), ("states.proto", &*content)];
        compile_files(&Config::new(), "clash_module", &files).map_err(|error| error.to_string())
    };
    assert_eq!(
        of_package("message State {}").unwrap_err(),
        "states.proto:1:40: shop.order.State: the name `State` in Rust is already taken by \
         order.proto:1:50: shop.Order.State; rename one of them in its file"
    );
    assert_eq!(of_package("message Other {}"), Ok(()));
}

#[test]
fn a_message_and_its_module_may_not_have_the_same_name() {
    let text = error(
        "clash_digit",
        "syntax = \"proto3\"; package p; message _1 { message Inner {} }",
    );
    assert!(
        text.contains("p._1: the name `_1` in Rust is already taken by"),
        "{text}"
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
fn types_that_describe_files_have_no_code() {
    let field = "syntax = \"proto3\"; package p; import \"google/protobuf/descriptor.proto\";
                 message M { google.protobuf.FileDescriptorProto file = 1; }";
    assert_eq!(
        error("meta_field", field),
        "test.proto:2:30: p.M.file: no code is generated for `google.protobuf.FileDescriptorProto`, nor for \
         anything else in google/protobuf/descriptor.proto; use `bytes` for it, or set \
         Config::extern_path for its package"
    );
    let elsewhere = Config::new().extern_path("google.protobuf", "::elsewhere");
    let result = compile_files(&elsewhere, "meta_extern", &[("test.proto", field)]);
    assert!(result.is_ok(), "{result:?}");

    for (name, content, expected) in [
        (
            "meta_map",
            "import \"google/protobuf/compiler/plugin.proto\";
             message M { map<string, google.protobuf.compiler.Version> by_name = 1; }",
            "p.M.by_name: no code is generated for `google.protobuf.compiler.Version`",
        ),
        (
            "meta_enum",
            "import \"starling/options.proto\"; message M { oneof of { starling.Mode mode = 1; } }",
            "p.M.mode: no code is generated for `starling.Mode`",
        ),
        (
            "meta_method",
            "import \"google/protobuf/descriptor.proto\"; message M {}
             service S { rpc Describe(M) returns (google.protobuf.FileDescriptorSet); }",
            "p.S.Describe: no code is generated for `google.protobuf.FileDescriptorSet`",
        ),
    ] {
        let text = error(name, &format!("syntax = \"proto3\"; package p; {content}"));
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn options_of_other_tools_are_ignored() {
    let old = "syntax = \"proto2\"; import \"google/protobuf/descriptor.proto\";
               extend google.protobuf.FieldOptions { optional string note = 50001; }";
    let result = compile("old_options", old);
    assert!(result.is_ok(), "{result:?}");
    let result = compile(
        "options",
        "syntax = \"proto3\"; package p; import \"google/protobuf/descriptor.proto\";
         extend google.protobuf.FieldOptions { string note = 50000; }
         message M { int32 a = 1 [(p.note) = \"x\"]; }",
    );
    assert!(result.is_ok(), "{result:?}");
}

#[test]
fn a_service_whose_schema_peers_would_refuse_is_refused() {
    let most = starling_message::schema::MAX_METHODS;
    let methods: String = (0..=most)
        .map(|number| format!("rpc M{number}(M) returns (M); "))
        .collect();
    let text = error(
        "large",
        &format!("syntax = \"proto3\"; package p; message M {{}}\nservice S {{ {methods} }}"),
    );
    assert_eq!(
        text,
        "test.proto:2:1: p.S: peers would refuse its schema: \
         a schema has more than 4096 methods; split the service"
    );
}
