use starling_call::Code;

use super::*;
use crate::policy::{FailurePercentage, OutlierDetection, RingHash, SuccessRate, Weighting};

fn parse(text: &str) -> Result<ServiceConfig, ServiceConfigError> {
    ServiceConfig::from_json(text)
}

fn ok(text: &str) -> ServiceConfig {
    parse(text).expect(text)
}

/// The field that an error names, and what it says.
fn wrong(text: &str) -> (String, String) {
    let error = parse(text).expect_err(text);
    (error.field, error.problem)
}

fn balancing(text: &str) -> LoadBalancing {
    let config = ok(&format!(r#"{{"loadBalancingConfig": {text}}}"#));
    config.balancing().expect(text).clone()
}

fn balancing_wrong(text: &str) -> (String, String) {
    wrong(&format!(r#"{{"loadBalancingConfig": {text}}}"#))
}

/// A config with one method.
fn method(fields: &str) -> String {
    format!(r#"{{"methodConfig": [{{"name": [{{"service": "s", "method": "M"}}], {fields}}}]}}"#)
}

const RETRY: &str = r#""maxAttempts": 3, "initialBackoff": "0.1s", "maxBackoff": "1s",
                       "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]"#;

#[test]
fn the_config_of_grpcs_documentation_is_read() {
    let config = ok(r#"{
        "loadBalancingConfig": [{"grpclb": {}}, {"round_robin": {}}, {"pick_first": {}}],
        "methodConfig": [
            {"name": [{}], "timeout": "1s"},
            {"name": [{"service": "kv.Kv"}], "waitForReady": true, "timeout": "2.000000001s",
             "maxRequestMessageBytes": 1024, "maxResponseMessageBytes": "0"},
            {"name": [{"service": "kv.Kv", "method": "Get"}, {"service": "kv.Kv", "method": "Scan"}],
             "retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.1s", "maxBackoff": "1s",
                             "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE", 10]}},
            {"name": [{"service": "kv.Kv", "method": "Near"}],
             "hedgingPolicy": {"maxAttempts": 4, "hedgingDelay": "0.5s",
                               "nonFatalStatusCodes": ["unavailable", "INTERNAL", "ABORTED"]}},
            {"timeout": "9s"}
        ],
        "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1},
        "healthCheckConfig": {"serviceName": "kv.Kv"}
    }"#);
    let second = Duration::from_secs(1);
    let retry = RetryPolicy::default()
        .max_attempts(4)
        .backoff(second / 10, second, 2.0)
        .codes([Code::Unavailable, Code::Aborted]);
    let hedge = HedgingPolicy::new(4, second / 2).non_fatal([
        Code::Unavailable,
        Code::Internal,
        Code::Aborted,
    ]);
    let service = MethodConfig::new()
        .timeout(Duration::new(2, 1))
        .wait_for_ready(true)
        .max_bytes(1024, 0);
    let expected = ServiceConfig::new()
        .load_balancing(LoadBalancing::round_robin())
        .method("", MethodConfig::new().timeout(second))
        .method("kv.Kv", service)
        .method("kv.Kv/Get", MethodConfig::new().retry(retry.clone()))
        .method("/kv.Kv/Scan", MethodConfig::new().retry(retry))
        .method("kv.Kv/Near", MethodConfig::new().hedge(hedge))
        .throttling(Throttling::new(10, 0.1).expect("valid"))
        .health_check("kv.Kv");
    assert_eq!(config, expected);
}

#[test]
fn the_closest_entry_counts_as_a_whole() {
    let config = ServiceConfig::new()
        .method("", MethodConfig::new().timeout(Duration::from_secs(1)))
        .method("a.B", MethodConfig::new().timeout(Duration::from_secs(2)))
        .method("a.B/C", MethodConfig::new().wait_for_ready(true));
    let timeout = |path| config.of_method(path).expect("there is a default").timeout;
    assert_eq!(timeout("/a.B/C"), None);
    assert_eq!(timeout("/a.B/D"), Some(Duration::from_secs(2)));
    assert_eq!(timeout("/a.Bc/C"), Some(Duration::from_secs(1)));
    assert_eq!(timeout("no path"), Some(Duration::from_secs(1)));
    assert!(config.has_methods() && !ServiceConfig::new().has_methods());
    assert_eq!(ServiceConfig::new().of_method("/a.B/C"), None);
}

#[test]
fn nothing_and_null_change_nothing() {
    for text in [
        "{}",
        r#"{"methodConfig": null, "unheardOf": null}"#,
        r#"{"methodConfig": []}"#,
    ] {
        assert_eq!(ok(text), ServiceConfig::new());
    }
    let named = ok(r#"{"methodConfig": [{"name": [{"service": "s", "method": null}]}]}"#);
    assert!(named.of_method("/s/Any").is_some());
}

#[test]
fn policies_are_read_with_their_settings() {
    let second = Duration::from_secs(1);
    let weighting = Weighting {
        error_utilization_penalty: 0.5,
        ..Weighting::default()
            .blackout(second)
            .expiration(2 * second)
            .update(second / 10)
    };
    let cases = [
        (r#"[{"pick_first": {}}]"#, LoadBalancing::pick_first()),
        (
            r#"[{"pick_first": {"shuffleAddressList": true}}]"#,
            LoadBalancing::pick_first_shuffled(),
        ),
        (
            r#"[{"least_request_experimental": {"choiceCount": 99}}]"#,
            LoadBalancing::least_request_of(10),
        ),
        (
            r#"[{"least_request_experimental": {}}]"#,
            LoadBalancing::least_request(),
        ),
        (
            r#"[{"weighted_round_robin": {"blackoutPeriod": "1s", "weightExpirationPeriod": "2s",
                 "weightUpdatePeriod": "0.01s", "errorUtilizationPenalty": 0.5,
                 "enableOobLoadReport": false, "oobReportingPeriod": "10s"}}]"#,
            LoadBalancing::weighted_round_robin(weighting),
        ),
        (
            r#"[{"ring_hash_experimental": {"requestHashHeader": "User-Id", "minRingSize": 16,
                 "maxRingSize": 8388608}}]"#,
            LoadBalancing::ring_hash(RingHash::by_metadata("user-id").size(16, 4096)),
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(balancing(text), expected, "{text}");
    }
    let named = |name| ok(&format!(r#"{{"loadBalancingPolicy": "{name}"}}"#));
    let round_robin = LoadBalancing::round_robin();
    assert_eq!(named("ROUND_ROBIN").balancing(), Some(&round_robin));
    let pick_first = LoadBalancing::pick_first();
    assert_eq!(named("pick_first").balancing(), Some(&pick_first));
    assert_eq!(named("UNSPECIFIED").balancing(), None);
    assert_eq!(LoadBalancing::default(), pick_first);
}

#[test]
fn policies_around_another_one_are_read_with_it() {
    let second = Duration::from_secs(1);
    let outliers = OutlierDetection::default()
        .interval(second)
        .ejection_time(2 * second, 3 * second)
        .max_ejection_percent(50)
        .by_success_rate(SuccessRate {
            stdev_factor: 1000,
            enforcement_percentage: 90,
            minimum_hosts: 3,
            request_volume: 10,
        })
        .by_failure_percentage(FailurePercentage {
            threshold: 40,
            enforcement_percentage: 0,
            minimum_hosts: 2,
            request_volume: 20,
        });
    let text = r#"[{"random_subsetting_experimental": {"subsetSize": 5, "childPolicy": [
        {"outlier_detection_experimental": {"interval": "1s", "baseEjectionTime": "2s",
         "maxEjectionTime": "3s", "maxEjectionPercent": 50,
         "successRateEjection": {"stdevFactor": 1000, "enforcementPercentage": 90,
                                 "minimumHosts": 3, "requestVolume": 10},
         "failurePercentageEjection": {"threshold": 40, "enforcementPercentage": 0,
                                       "minimumHosts": 2, "requestVolume": 20},
         "childPolicy": [{"unheard_of": {"a": 1}}, {"round_robin": {}}]}}]}}]"#;
    let expected = LoadBalancing::round_robin()
        .outlier_detection(outliers)
        .subset_size(5);
    assert_eq!(balancing(text), expected);
}

/// Fields of a method's entry, and the field below `methodConfig[0]` that is wrong.
const WRONG_METHODS: [(&str, &str); 11] = [
    (r#""timeOut": "1s""#, "timeOut"),
    (r#""timeout": 1"#, "timeout"),
    (r#""timeout": "1""#, "timeout"),
    (r#""timeout": "-1s""#, "timeout"),
    (r#""timeout": "1.0000000001s""#, "timeout"),
    (r#""timeout": "315576000001s""#, "timeout"),
    (r#""waitForReady": "yes""#, "waitForReady"),
    (r#""maxRequestMessageBytes": -1"#, "maxRequestMessageBytes"),
    (
        r#""maxResponseMessageBytes": 4294967296"#,
        "maxResponseMessageBytes",
    ),
    (
        r#""hedgingPolicy": {"maxAttempts": 1}"#,
        "hedgingPolicy.maxAttempts",
    ),
    (
        r#""hedgingPolicy": {"maxAttempts": 2}, "retryPolicy": {}"#,
        "hedgingPolicy",
    ),
];

/// What is replaced in a retry policy by what, and the field that is wrong then.
const WRONG_RETRIES: [(&str, &str, &str); 9] = [
    ("maxAttempts", "most", "maxAttempts"),
    ("3", "1", "maxAttempts"),
    ("3", "2.5", "maxAttempts"),
    ("0.1s", "0s", "initialBackoff"),
    ("maxBackoff", "longest", "maxBackoff"),
    ("2,", "0,", "backoffMultiplier"),
    ("[\"UNAVAILABLE\"]", "[]", "retryableStatusCodes"),
    ("[\"", "[1, \"OK\", \"", "retryableStatusCodes[1]"),
    ("\"UNAVAILABLE\"", "17", "retryableStatusCodes[0]"),
];

/// Whole configs, and the field that is wrong.
const WRONG: [(&str, &str); 10] = [
    (r#"{"connectionScaling": {}}"#, "connectionScaling"),
    (r#"{"methodConfig": {}}"#, "methodConfig"),
    (
        r#"{"methodConfig": [{"name": [{"method": "M"}]}]}"#,
        "methodConfig[0].name[0]",
    ),
    (
        r#"{"methodConfig": [{"name": [{"service": "a/B"}]}]}"#,
        "methodConfig[0].name[0]",
    ),
    (
        r#"{"methodConfig": [{"name": [{}]}, {"name": [{"service": "s"}, {"service": ""}]}]}"#,
        "methodConfig[1].name[1]",
    ),
    (
        r#"{"retryThrottling": {"maxTokens": 1001, "tokenRatio": 1}}"#,
        "retryThrottling.maxTokens",
    ),
    (
        r#"{"retryThrottling": {"maxTokens": 10, "tokenRatio": 0}}"#,
        "retryThrottling.tokenRatio",
    ),
    (
        r#"{"healthCheckConfig": {"serviceName": 1}}"#,
        "healthCheckConfig.serviceName",
    ),
    (
        r#"{"loadBalancingPolicy": "grpclb"}"#,
        "loadBalancingPolicy",
    ),
    (r#"{"loadBalancingConfig": {}}"#, "loadBalancingConfig"),
];

#[test]
fn what_cannot_be_honoured_is_refused_and_named() {
    let check = |text: &str, field: &str| {
        let (named, problem) = wrong(text);
        assert_eq!(named, field, "{text}: {problem}");
        assert!(!problem.is_empty());
    };
    for (text, field) in WRONG {
        check(text, field);
    }
    for (fields, field) in WRONG_METHODS {
        check(&method(fields), &format!("methodConfig[0].{field}"));
    }
    for (from, to, field) in WRONG_RETRIES {
        let text = method(&format!(
            r#""retryPolicy": {{{}}}"#,
            RETRY.replace(from, to)
        ));
        check(&text, &format!("methodConfig[0].retryPolicy.{field}"));
    }
    let text = method(&format!(r#""retryPolicy": {{{RETRY}, "jitter": 1}}"#));
    check(&text, "methodConfig[0].retryPolicy.jitter");
    for text in ["", "{", "[]", "7", "{} {}", r#"{"a": 1, }"#] {
        check(text, "");
    }
}

#[test]
fn names_of_policies_that_are_not_known_are_quoted() {
    let problem = |text: &str| wrong(text).1;
    let one = problem(r#"{"loadBalancingConfig": [{"rond_robin": {}}]}"#);
    let says = r#"has no policy that this version knows, only "rond_robin": it knows pick_first, "#;
    assert!(one.starts_with(says), "{one}");
    let two = problem(r#"{"loadBalancingConfig": [{"xds": {}}, {"\n": {}}]}"#);
    assert!(two.contains(r#", only "xds", "\n": it"#), "{two}");
    let none = problem(r#"{"loadBalancingConfig": []}"#);
    assert!(none.starts_with("has no policy that this version knows: it knows"));
    let older = problem(r#"{"loadBalancingPolicy": "grpclb"}"#);
    let says = r#""grpclb" is not ROUND_ROBIN or PICK_FIRST: use loadBalancingConfig"#;
    assert_eq!(older, says);
}

/// Settings of a policy, and the field that is wrong: below the policy's own if it begins with a dot.
const WRONG_POLICIES: [(&str, &str); 15] = [
    ("[]", "loadBalancingConfig"),
    (r#"[{"xds": {}}]"#, "loadBalancingConfig"),
    (
        r#"[{"round_robin": {}, "pick_first": {}}]"#,
        "loadBalancingConfig[0]",
    ),
    (r#"[{"round_robin": {"weights": []}}]"#, ".weights"),
    (
        r#"[{"least_request_experimental": {"choiceCount": 1}}]"#,
        ".choiceCount",
    ),
    (
        r#"[{"weighted_round_robin": {"enableOobLoadReport": true}}]"#,
        ".enableOobLoadReport",
    ),
    (
        r#"[{"weighted_round_robin": {"errorUtilizationPenalty": -1}}]"#,
        ".errorUtilizationPenalty",
    ),
    (r#"[{"ring_hash_experimental": {}}]"#, ".requestHashHeader"),
    (
        r#"[{"ring_hash_experimental": {"requestHashHeader": "x-bin"}}]"#,
        ".requestHashHeader",
    ),
    (
        r#"[{"ring_hash_experimental": {"requestHashHeader": "a b"}}]"#,
        ".requestHashHeader",
    ),
    (
        r#"[{"ring_hash_experimental": {"requestHashHeader": "x", "maxRingSize": 8388609}}]"#,
        ".maxRingSize",
    ),
    (
        r#"[{"random_subsetting_experimental": {"subsetSize": 0}}]"#,
        ".subsetSize",
    ),
    (
        r#"[{"outlier_detection_experimental": {}}]"#,
        ".childPolicy",
    ),
    (
        r#"[{"outlier_detection_experimental": {"childPolicy": [{"round_robin": {}}],
             "maxEjectionPercent": 101}}]"#,
        ".maxEjectionPercent",
    ),
    (
        r#"[{"outlier_detection_experimental": {"childPolicy": [{"round_robin": {}}],
             "failurePercentageEjection": {"threshold": 101}}}]"#,
        ".failurePercentageEjection.threshold",
    ),
];

#[test]
fn policies_that_cannot_be_honoured_are_refused_and_named() {
    for (text, field) in WRONG_POLICIES {
        let (named, problem) = balancing_wrong(text);
        let policy = text.split('"').nth(1).unwrap_or_default();
        let expected = match field.starts_with('.') {
            true => format!("loadBalancingConfig[0].{policy}{field}"),
            false => field.to_owned(),
        };
        assert_eq!(named, expected, "{text}: {problem}");
    }
    let twice = r#"[{"outlier_detection_experimental": {"childPolicy": [
        {"outlier_detection_experimental": {"childPolicy": [{"round_robin": {}}]}}]}}]"#;
    let (named, _) = balancing_wrong(twice);
    assert_eq!(
        named,
        "loadBalancingConfig[0].outlier_detection_experimental"
    );
}

#[test]
fn errors_say_where_and_what() {
    let error = parse(&method(r#""timeout": "soon""#)).expect_err("no duration");
    assert_eq!(
        error.to_string(),
        "the service config's methodConfig[0].timeout: \"soon\" is not a duration such as \"1.5s\""
    );
    let error = parse("{").expect_err("no JSON").to_string();
    assert!(error.starts_with("the service config: "), "{error}");
    let long = format!(r#"{{"methodConfig": "{}"}}"#, "x".repeat(1000));
    assert!(parse(&long).expect_err("no list").to_string().len() < 200);
    let too_long = " ".repeat(MAX_BYTES + 1);
    assert!(parse(&too_long).is_err());
    let nested = "[".repeat(100_000);
    assert!(parse(&nested).is_err());
}

/// What the next harness keeps, so that a fuzzer begins with something.
#[test]
fn the_kept_text_is_a_config() {
    ok(include_str!(
        "__fuzz__/config__tests__any_text_is_a_config_or_an_error/corpus/config.json"
    ));
}

#[test]
fn any_text_is_a_config_or_an_error() {
    bolero::check!().for_each(|bytes: &[u8]| {
        if let Ok(text) = std::str::from_utf8(bytes) {
            let _ = parse(text);
        }
    });
}

/// Each value of a good config, replaced by each of some others: a config or an error, never a panic.
#[test]
fn a_config_with_any_value_replaced_is_a_config_or_an_error() {
    let good = r#"{
        "loadBalancingConfig": [{"outlier_detection_experimental": {"interval": "1s",
            "successRateEjection": {"stdevFactor": 1}, "childPolicy": [{"ring_hash_experimental":
            {"requestHashHeader": "k", "minRingSize": 3, "maxRingSize": 9}}]}}],
        "methodConfig": [{"name": [{"service": "s"}], "retryPolicy": {"maxAttempts": 2,
            "initialBackoff": "1s", "maxBackoff": "2s", "backoffMultiplier": 1.5,
            "retryableStatusCodes": [14]}}],
        "retryThrottling": {"maxTokens": 1, "tokenRatio": 1},
        "healthCheckConfig": {"serviceName": ""}
    }"#;
    ok(good);
    let others = [
        "null",
        "true",
        "-1",
        "0",
        "1e400",
        "1e18",
        "18446744073709551616",
        "\"\"",
        "\"s\"",
        "[]",
        "{}",
        "[[]]",
        "\"1e9s\"",
        "\".5s\"",
        "\"999999999999999999999s\"",
        "[null]",
        "[{}]",
    ];
    // Places where a value begins: behind a colon or a bracket.
    let places = good
        .char_indices()
        .filter(|(_, c)| matches!(c, ':' | '[' | ','));
    for (place, _) in places {
        let (head, tail) = good.split_at(place + 1);
        let end = tail.find([',', '}', ']']).expect("the text goes on");
        for other in others {
            let _ = parse(&format!("{head}{other}{}", &tail[end..]));
        }
    }
}

#[test]
fn idempotent_methods_are_retried_unless_their_entry_says_how() {
    let (policy, other) = (
        RetryPolicy::default(),
        RetryPolicy::default().max_attempts(2),
    );
    let once = MethodConfig::new().timeout(Duration::from_secs(1));
    let config = ServiceConfig::new()
        .retry_idempotent(policy.clone())
        .method("a.B/Once", once)
        .method("a.B/Own", MethodConfig::new().retry(other.clone()));
    assert!(config.has_methods());
    for path in ["/a.B/Once", "/a.B/Other"] {
        assert_eq!(
            config.attempts_of(path, true),
            &Attempts::Retry(policy.clone())
        );
        assert_eq!(config.attempts_of(path, false), &Attempts::Once);
    }
    for is_idempotent in [true, false] {
        let attempts = config.attempts_of("/a.B/Own", is_idempotent);
        assert_eq!(attempts, &Attempts::Retry(other.clone()));
    }
}

#[test]
fn a_key_that_stands_twice_is_refused() {
    let texts = [
        r#"{"methodConfig": [], "methodConfig": []}"#,
        r#"{"methodConfig": [{"name": [], "timeout": "1s", "timeout": null}]}"#,
    ];
    for text in texts {
        let (field, problem) = wrong(text);
        assert_eq!(field, "");
        assert!(
            problem.contains("stands twice in an object at line 1"),
            "{problem}"
        );
    }
}
