use std::sync::{Arc, Mutex};

use tracing::{debug, error, info, warn};

use super::*;
use crate::random::Random;

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
    Klog { options, pid: 19718, zone: LazyLock::new(zone), lost: AtomicU64::default() }
}

fn recorded(klog: Klog, log: impl FnOnce()) -> Vec<String> {
    let lines = Arc::default();
    let recorder = Recorder { klog, lines: Arc::clone(&lines) };
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
    let options = Options { json: true, ..options };
    let lines = recorded(klog(options, TimeZone::utc), log);
    let strip = |line: &String| {
        let (_, rest) = line.split_once("\"msg\":").unwrap();
        rest.to_owned()
    };
    lines.iter().map(strip).collect()
}

fn verbosity(verbosity: u32) -> Options {
    Options { verbosity, ..Options::default() }
}

fn vmodule(rules: &[(&str, u32)]) -> Options {
    let rule = |(glob, v): &(&str, u32)| ((*glob).to_owned(), *v);
    Options { vmodule: rules.iter().map(rule).collect(), ..Options::default() }
}

#[test]
fn quotes_as_go_does() {
    for (text, quoted) in [
        ("", r#""""#),
        ("plain 'text' `<&>`", r#""plain 'text' `<&>`""#),
        (r#"a "b" c\d"#, r#""a \"b\" c\\d""#),
        ("\0\x01\x07\x08\t\n\x0b\x0c\r\x1b\x1f\x7f", r#""\x00\x01\a\b\t\n\v\f\r\x1b\x1f\x7f""#),
        ("é中文हिन्दी\u{1f600}\u{fffd}", "\"é中文हिन्दी\u{1f600}\u{fffd}\""),
        ("\u{301}x e\u{301}", "\"\u{301}x e\u{301}\""),
        ("\u{e0100}", "\"\u{e0100}\""),
        ("\u{85}\u{a0}\u{ad}\u{378}", r#""\u0085\u00a0\u00ad\u0378""#),
        ("\u{200b}\u{200d}\u{202e}\u{feff}", r#""\u200b\u200d\u202e\ufeff""#),
        ("\u{2028}\u{2029}\u{3000}\u{e000}", r#""\u2028\u2029\u3000\ue000""#),
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
        ("\0\x07\x08\t\n\x0b\x0c\r\x1b\x7f", "\"\\u0000\\u0007\\b\\t\\n\\u000b\\f\\r\\u001b\x7f\""),
        ("<a> & 'b'", r#""\u003ca\u003e \u0026 'b'""#),
        ("\u{2027}\u{2028}\u{2029}", "\"\u{2027}\\u2028\\u2029\""),
        ("é\u{301}\u{200b}\u{10ffff}", "\"é\u{301}\u{200b}\u{10ffff}\""),
    ] {
        assert_eq!(json_string(text), escaped, "{text:?}");
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
    assert_eq!(lines, [format!("I1201 21:57:42.288881   19718 tests.rs:{line}] \"x\"\n")]);
}

#[test]
fn text_header_follows_the_zone_into_another_day() {
    let zone = || TimeZone::from_posix_tz("XYZ+13").unwrap();
    let lines = recorded(klog(Options::default(), zone), || info!("x"));
    assert!(lines[0].starts_with("I1130 23:27:42.288881 "), "{lines:?}");
}

#[test]
fn json_line_starts_with_time_and_caller() {
    let options = Options { json: true, ..Options::default() };
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
        ["\"x\",\"err\":\"why\"}\n", "\"x\",\"v\":0}\n", "\"x\",\"v\":5,\"method\":\"/m\"}\n",]
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
    let options = Options { verbosity: 5, ..vmodule(&[("tests", 0)]) };
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
        assert!(matches_glob(glob.as_bytes(), name.as_bytes()), "{glob} {name}");
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
        assert!(!matches_glob(glob.as_bytes(), name.as_bytes()), "{glob} {name}");
    }
}

#[test]
fn a_second_init_does_nothing() {
    init(&Options::default());
    init(&verbosity(5));
}

const GOS_ESCAPES: &str = "abtnvfr\\\"xuU";
const JSONS_ESCAPES: &str = "btnfr\\\"u";

/// Takes a string literal, by the rules of Go or of JSON.
fn unquote(rest: &mut &str, escapes: &str) -> String {
    let mut chars = rest.strip_prefix('"').expect("a quote").chars();
    let mut text = String::new();
    loop {
        let c = match chars.next().expect("another quote") {
            '"' => break,
            '\\' => chars.next().expect("an escape"),
            c => {
                text.push(c);
                continue;
            }
        };
        assert!(escapes.contains(c), "\\{c}");
        let digits = match c {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        let code: String = chars.by_ref().take(digits).collect();
        text.push(match c {
            'a' => '\x07',
            'b' => '\x08',
            't' => '\t',
            'n' => '\n',
            'v' => '\x0b',
            'f' => '\x0c',
            'r' => '\r',
            'x' | 'u' | 'U' => char::from_u32(u32::from_str_radix(&code, 16).unwrap()).unwrap(),
            itself => itself,
        });
    }
    *rest = chars.as_str();
    text
}

#[test]
fn a_quoted_text_is_printable_and_reads_back() {
    let mut random = Random(0x9e6c_63d0_876a_9a47);
    for _ in 0..20_000 {
        let text = random.string();
        let quoted = quote(&text).to_string();
        let is_printable = |c: char| c == ' ' || !(c.is_control() || c.is_whitespace());
        assert!(quoted.chars().all(is_printable), "{text:?}");
        let mut rest = &*quoted;
        assert_eq!((unquote(&mut rest, GOS_ESCAPES), rest), (text, ""));
    }
}

#[test]
fn a_json_string_is_one_line_and_reads_back() {
    let mut random = Random(0x7f4a_7c15_f39c_c060);
    for _ in 0..20_000 {
        let text = random.string();
        for html in [false, true] {
            let json = json_escaped(&text, html).to_string();
            assert!(!json.contains(|c| c < ' '), "{text:?}");
            let mut rest = &*json;
            assert_eq!((unquote(&mut rest, JSONS_ESCAPES), rest), (text.clone(), ""));
        }
    }
}

/// A message and fields of each kind, as one event.
struct Said {
    message: String,
    text: String,
    number: i64,
    flag: bool,
}

impl Said {
    fn by(random: &mut Random) -> Self {
        Self {
            message: random.string(),
            text: random.string(),
            number: random.number().cast_signed(),
            flag: random.below(2) == 0,
        }
    }

    fn logged(&self, options: &Options) -> String {
        let Self { message, text, number, flag } = self;
        let none = None::<&str>;
        let mut lines = recorded(klog(options.clone(), TimeZone::utc), || {
            warn!(text, number, flag, display = %text, none, "{message}");
        });
        assert_eq!(lines.len(), 1);
        lines.remove(0)
    }
}

/// An object of strings and bare values, on one line.
fn parse_json(line: &str) -> Vec<(String, String)> {
    let line = line.strip_suffix("}\n").expect("the end of an object");
    assert!(!line.contains('\n'));
    let mut rest = line.strip_prefix('{').expect("an object");
    let mut pairs = Vec::new();
    loop {
        let key = unquote(&mut rest, JSONS_ESCAPES);
        rest = rest.strip_prefix(':').expect("a value");
        let value = if rest.starts_with('"') {
            unquote(&mut rest, JSONS_ESCAPES)
        } else {
            let (bare, next) = rest.split_at(rest.find(',').unwrap_or(rest.len()));
            rest = next;
            bare.to_owned()
        };
        pairs.push((key, value));
        if rest.is_empty() {
            return pairs;
        }
        rest = rest.strip_prefix(',').expect("another pair");
    }
}

#[test]
fn an_event_is_one_line_of_json_and_reads_back() {
    let mut random = Random(0xbf58_476d_1ce4_e5b9);
    let options = Options { json: true, ..Options::default() };
    for _ in 0..2_000 {
        let said = Said::by(&mut random);
        let pairs = parse_json(&said.logged(&options));
        let keys: Vec<_> = pairs.iter().map(|(key, _)| &**key).collect();
        let expected = "ts caller msg v text number flag display none";
        assert_eq!(keys.join(" "), expected);
        let values: Vec<_> = pairs[2..].iter().map(|(_, value)| value.clone()).collect();
        let (number, flag) = (said.number.to_string(), said.flag.to_string());
        let expected =
            [said.message, "0".into(), said.text.clone(), number, flag, said.text, "null".into()];
        assert_eq!(values, expected);
    }
}

/// Takes a value of the text format: quoted, set off by tabs, or bare up to a blank.
fn text_value(rest: &mut &str) -> String {
    if rest.starts_with('"') {
        return unquote(rest, GOS_ESCAPES);
    }
    if let Some(lines) = rest.strip_prefix("<\n") {
        let (lines, next) = lines.split_once("\n >").expect("the end of the lines");
        *rest = next;
        let line = |line: &str| line.strip_prefix('\t').expect("a tab").to_owned();
        return lines.split('\n').map(line).collect::<Vec<_>>().join("\n");
    }
    let (bare, next) = rest.split_at(rest.find([' ', '\n']).expect("an end"));
    *rest = next;
    bare.to_owned()
}

/// Of klog: the severity, month and day, the time to a microsecond, the process in seven columns,
/// the place; then the message, and pairs after one blank each.
#[test]
fn an_event_is_a_header_and_its_parts_in_text_and_reads_back() {
    let mut random = Random(0x94d0_49bb_1331_11eb);
    for _ in 0..2_000 {
        let said = Said::by(&mut random);
        let line = said.logged(&Options::default());
        let (header, mut rest) = line.split_once("] ").unwrap();
        let (time, place) = header.split_once(" tests.rs:").unwrap();
        let picture = time.replace(|c: char| c.is_ascii_digit(), "0");
        assert_eq!(picture, "W0000 00:00:00.000000   00000");
        assert!(place.bytes().all(|byte| byte.is_ascii_digit()), "{place}");
        let lines = line.strip_suffix('\n').unwrap().split('\n').skip(1);
        assert!(lines.clone().all(|line| line.starts_with(['\t', ' '])), "{line:?}");

        assert_eq!(unquote(&mut rest, GOS_ESCAPES), said.message);
        // of lines that are set off, the last may have had an end or not
        let text = match said.text.strip_suffix('\n') {
            Some(lines) => lines,
            None => &said.text,
        };
        let (number, flag) = (said.number.to_string(), said.flag.to_string());
        let pairs = [
            ("text", text),
            ("number", &number),
            ("flag", &flag),
            ("display", text),
            ("none", "null"),
        ];
        for (key, value) in pairs {
            rest = rest.strip_prefix(&format!(" {key}=")).expect(key);
            assert_eq!(text_value(&mut rest), value, "{line:?}");
        }
        assert_eq!(rest, "\n");
    }
}
