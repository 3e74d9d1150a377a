use std::sync::{Arc, Mutex};

use tracing::{debug, error, info, warn};

use super::*;

/// Renders as the log does, but with a fixed time, process and zone, and keeps the lines.
struct Recorder {
    klog: Klog,
    lines: Arc<Mutex<Vec<String>>>,
}

const NOW: Duration = Duration::new(1_733_056_062, 288_881_499);

impl<S: Subscriber> Layer<S> for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.klog.shows(metadata)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let line = self.klog.line(event, NOW);
        self.lines.lock().unwrap().extend(line);
    }
}

fn klog(options: Options, zone: fn() -> TimeZone) -> Klog {
    Klog {
        options,
        pid: 19718,
        zone: LazyLock::new(zone),
    }
}

fn recorded(klog: Klog, log: impl FnOnce()) -> Vec<String> {
    let lines = Arc::default();
    let recorder = Recorder {
        klog,
        lines: Arc::clone(&lines),
    };
    tracing::subscriber::with_default(Registry::default().with(recorder), log);
    let lines = lines.lock().unwrap();
    lines.clone()
}

/// What follows the header, one entry a line.
fn text(options: Options, log: impl FnOnce()) -> Vec<String> {
    let lines = recorded(klog(options, TimeZone::utc), log);
    let strip = |line: &String| line.split_once("] ").unwrap().1.to_owned();
    lines.iter().map(strip).collect()
}

/// What follows `caller`, one entry a line.
fn json(options: Options, log: impl FnOnce()) -> Vec<String> {
    let options = Options {
        json: true,
        ..options
    };
    let lines = recorded(klog(options, TimeZone::utc), log);
    let strip = |line: &String| {
        let (_, rest) = line.split_once("\"msg\":").unwrap();
        rest.to_owned()
    };
    lines.iter().map(strip).collect()
}

fn verbosity(verbosity: u32) -> Options {
    Options {
        verbosity,
        ..Options::default()
    }
}

fn vmodule(rules: &[(&str, u32)]) -> Options {
    let rule = |(glob, v): &(&str, u32)| ((*glob).to_owned(), *v);
    Options {
        vmodule: rules.iter().map(rule).collect(),
        ..Options::default()
    }
}

#[test]
fn quotes_as_go_does() {
    for (text, quoted) in [
        ("", r#""""#),
        ("plain 'text' `<&>`", r#""plain 'text' `<&>`""#),
        (r#"a "b" c\d"#, r#""a \"b\" c\\d""#),
        (
            "\0\x01\x07\x08\t\n\x0b\x0c\r\x1b\x1f\x7f",
            r#""\x00\x01\a\b\t\n\v\f\r\x1b\x1f\x7f""#,
        ),
        (
            "é中文हिन्दी\u{1f600}\u{fffd}",
            "\"é中文हिन्दी\u{1f600}\u{fffd}\"",
        ),
        ("\u{301}x e\u{301}", "\"\u{301}x e\u{301}\""),
        ("\u{e0100}", "\"\u{e0100}\""),
        ("\u{85}\u{a0}\u{ad}\u{378}", r#""\u0085\u00a0\u00ad\u0378""#),
        (
            "\u{200b}\u{200d}\u{202e}\u{feff}",
            r#""\u200b\u200d\u202e\ufeff""#,
        ),
        (
            "\u{2028}\u{2029}\u{3000}\u{e000}",
            r#""\u2028\u2029\u3000\ue000""#,
        ),
        ("\u{f0000}\u{10ffff}", r#""\U000f0000\U0010ffff""#),
    ] {
        assert_eq!(quote(text).to_string(), quoted, "{text:?}");
    }
}

#[test]
fn escapes_json_values_as_json_marshal_does() {
    for (text, escaped) in [
        ("", r#""""#),
        (r#"a "b" c\d /"#, r#""a \"b\" c\\d /""#),
        (
            "\0\x07\x08\t\n\x0b\x0c\r\x1b\x7f",
            "\"\\u0000\\u0007\\b\\t\\n\\u000b\\f\\r\\u001b\x7f\"",
        ),
        ("<a> & 'b'", r#""\u003ca\u003e \u0026 'b'""#),
        ("\u{2027}\u{2028}\u{2029}", "\"\u{2027}\\u2028\\u2029\""),
        (
            "é\u{301}\u{200b}\u{10ffff}",
            "\"é\u{301}\u{200b}\u{10ffff}\"",
        ),
    ] {
        assert_eq!(json_string(text).to_string(), escaped, "{text:?}");
    }
}

#[test]
fn escapes_json_lines_as_the_original_does() {
    for (text, escaped) in [
        (r#"a "b" c\d"#, r#""a \"b\" c\\d""#),
        (
            "\0\x07\x08\t\n\x0b\x0c\r\x1b\x7f",
            "\"\\u0000\\u0007\\u0008\\t\\n\\u000b\\u000c\\r\\u001b\x7f\"",
        ),
        ("<&>\u{2028}\u{202e}é", "\"<&>\u{2028}\u{202e}é\""),
    ] {
        assert_eq!(json_escaped(text, false).to_string(), escaped, "{text:?}");
    }
}

#[test]
fn sets_lines_off_with_tabs() {
    for (text, shown) in [
        ("one\ntwo", "<\n\tone\n\ttwo\n >"),
        ("end\n", "<\n\tend\n >"),
        ("\n", "<\n\t\n >"),
        ("a\r\n\tb\n\nc", "<\n\ta\r\n\t\tb\n\t\n\tc\n >"),
    ] {
        assert_eq!(set_off(text).to_string(), shown, "{text:?}");
    }
}

#[test]
fn text_header_shows_severity_local_time_process_and_place() {
    let zone = || TimeZone::from_posix_tz("XYZ-9:30").unwrap();
    let lines = recorded(klog(Options::default(), zone), || info!("x"));
    let line = line!() - 1;
    assert_eq!(
        lines,
        [format!(
            "I1201 21:57:42.288881   19718 tests.rs:{line}] \"x\"\n"
        )]
    );
}

#[test]
fn text_header_follows_the_zone_into_another_day() {
    let zone = || TimeZone::from_posix_tz("XYZ+13").unwrap();
    let lines = recorded(klog(Options::default(), zone), || info!("x"));
    assert!(lines[0].starts_with("I1130 23:27:42.288881 "), "{lines:?}");
}

#[test]
fn json_line_starts_with_time_and_caller() {
    let options = Options {
        json: true,
        ..Options::default()
    };
    let lines = recorded(klog(options, TimeZone::utc), || info!("x"));
    let line = line!() - 1;
    assert_eq!(
        lines,
        [format!(
            "{{\"ts\":1733056062288.8813,\"caller\":\"klog/tests.rs:{line}\",\"msg\":\"x\",\"v\":0}}\n"
        )]
    );
}

#[test]
fn severities_are_letters_in_text() {
    let lines = recorded(klog(verbosity(5), TimeZone::utc), || {
        error!("x");
        warn!("x");
        info!("x");
        debug!(v = 5, "x");
    });
    let letters: String = lines.iter().map(|line| &line[..1]).collect();
    assert_eq!(letters, "EWII");
}

#[test]
fn json_errors_carry_no_v() {
    let lines = json(verbosity(5), || {
        error!(err = "why", "x");
        warn!("x");
        debug!(v = 5, method = "/m", "x");
    });
    assert_eq!(
        lines,
        [
            "\"x\",\"err\":\"why\"}\n",
            "\"x\",\"v\":0}\n",
            "\"x\",\"v\":5,\"method\":\"/m\"}\n",
        ]
    );
}

/// A field of every kind, in an order that is not that of the alphabet.
fn log_all_kinds() {
    let absent = None::<&str>;
    warn!(
        none = absent,
        some = Some("s"),
        number = 3,
        negative = -3,
        on = true,
        display = %"a \"b\"",
        debug = ?"a",
        err = absent,
        "message of {}\n{}",
        "two",
        "lines",
    );
}

#[test]
fn text_keys_keep_their_order_and_kind() {
    assert_eq!(
        text(Options::default(), log_all_kinds),
        [concat!(
            r#""message of two\nlines" none=null some="s" number=3 negative=-3 on=true "#,
            r#"display="a \"b\"" debug="\"a\"" err=null"#,
            "\n"
        )]
    );
}

#[test]
fn json_keys_keep_their_order_and_kind() {
    assert_eq!(
        json(Options::default(), log_all_kinds),
        [concat!(
            r#""message of two\nlines","v":0,"none":null,"some":"s","number":3,"negative":-3,"#,
            r#""on":true,"display":"a \"b\"","debug":"\"a\"","err":null}"#,
            "\n"
        )]
    );
}

#[test]
fn values_of_several_lines_are_set_off_in_text_only() {
    let log = || error!(err = %"one\ntwo", socket = "x", "failed");
    assert_eq!(
        text(Options::default(), log),
        ["\"failed\" err=<\n\tone\n\ttwo\n > socket=\"x\"\n"]
    );
    assert_eq!(
        json(Options::default(), log),
        ["\"failed\",\"err\":\"one\\ntwo\",\"socket\":\"x\"}\n"]
    );
}

#[test]
fn shows_what_the_verbosity_allows() {
    let log = || {
        info!("zero");
        debug!(v = 1, "one");
        debug!(v = 4, "four");
        debug!(v = 5, "five");
    };
    for (v, shown) in [(0, 1), (1, 2), (3, 2), (4, 3), (5, 4), (9, 4)] {
        assert_eq!(text(verbosity(v), log).len(), shown, "-v={v}");
    }
}

#[test]
fn vmodule_raises_the_verbosity_of_a_file() {
    let log = || {
        debug!(v = 4, "four");
        debug!(v = 5, "five");
    };
    for (rules, shown) in [
        (&[("tests", 4)][..], 1),
        (&[("tests", 5)], 2),
        (&[("t*s", 5)], 2),
        (&[("tests.rs", 5)], 0),
        (&[("klog/tests", 5)], 0),
        (&[("main", 5)], 0),
        (&[("*", 0), ("tests", 5)], 2),
        (&[("*", 4), ("tests", 5)], 1),
        (&[("main", 4), ("tests", 5)], 2),
    ] {
        assert_eq!(text(vmodule(rules), log).len(), shown, "{rules:?}");
    }
}

#[test]
fn vmodule_never_lowers() {
    let options = Options {
        verbosity: 5,
        ..vmodule(&[("tests", 0)])
    };
    assert_eq!(text(options, || debug!(v = 5, "x")).len(), 1);
}

fn never_evaluated() -> bool {
    panic!("evaluated though nobody listens");
}

#[test]
fn debug_costs_nothing_unless_asked_for() {
    let hint = |options| Layer::<Registry>::max_level_hint(&klog(options, TimeZone::utc));
    assert_eq!(hint(Options::default()), Some(LevelFilter::INFO));
    assert_eq!(hint(verbosity(1)), Some(LevelFilter::DEBUG));
    assert_eq!(hint(vmodule(&[("x", 1)])), Some(LevelFilter::DEBUG));

    recorded(klog(vmodule(&[("main", 5)]), TimeZone::utc), || {
        debug!(v = 5, never = never_evaluated(), "x");
    });
}

#[test]
fn libraries_are_not_heard() {
    let lines = text(verbosity(9), || {
        error!(target: "h2", "x");
        info!(target: "tonic::transport", "x");
        let ours = module_path!().split("::").next().unwrap();
        assert!(!is_ours(&format!("{ours}2::x")));
        assert!(is_ours(ours));
    });
    assert_eq!(lines, [""; 0]);
}

#[test]
fn globs_match_the_whole_name() {
    for (glob, name) in [
        ("main", "main"),
        ("*", ""),
        ("*", "main"),
        ("m*", "m"),
        ("*n", "main"),
        ("m*i*", "main"),
        ("ma?n", "main"),
        ("????", "main"),
    ] {
        assert!(
            matches_glob(glob.as_bytes(), name.as_bytes()),
            "{glob} {name}"
        );
    }
    for (glob, name) in [
        ("", "main"),
        ("main", "mai"),
        ("mai", "main"),
        ("MAIN", "main"),
        ("?", ""),
        ("?????", "main"),
        ("m*x", "main"),
        ("m*?x", "main"),
    ] {
        assert!(
            !matches_glob(glob.as_bytes(), name.as_bytes()),
            "{glob} {name}"
        );
    }
}

#[test]
fn a_second_init_does_nothing() {
    init(&Options::default());
    init(&verbosity(5));
}
