use std::fmt::Debug;

use super::*;
use crate::random::Random;

fn flags() -> Command {
    let flags = [valued("path", string), valued("v", verbosity), boolean("version", parse_bool)];
    Command::new("test").args(flags).subcommand(Command::new("ask"))
}

fn read(args: &[&str]) -> (Vec<String>, End) {
    walk(&flags(), args.iter().map(|&arg| arg.to_owned()))
}

fn accepts<T: PartialEq + Debug, E: PartialEq + Debug>(
    grammar: fn(&str) -> Result<T, E>,
    table: impl IntoIterator<Item = (&'static str, T)>,
) {
    for (text, value) in table {
        assert_eq!(grammar(text), Ok(value), "{text:?}");
    }
}

fn refuses<T: Debug, E: ToString>(
    grammar: fn(&str) -> Result<T, E>,
    reason: &str,
    texts: impl IntoIterator<Item = &'static str>,
) {
    for text in texts {
        let error = grammar(text).expect_err(text);
        assert_eq!(error.to_string(), reason, "{text:?}");
    }
}

#[test]
fn every_spelling_of_a_flag_is_the_same() {
    for args in [&["-path=x"][..], &["--path=x"], &["-path", "x"], &["--path", "x"]] {
        assert_eq!(read(args), (vec!["--path=x".to_owned()], End::Operands));
    }
    for args in [&["-version"][..], &["--version"], &["--version=true"], &["--version", "false"]] {
        assert_eq!(read(args), (vec!["--version=true".to_owned()], End::Operands));
    }
}

#[test]
fn a_value_may_be_anything() {
    for value in ["", "a=b=c", "-", "--", "--version", "--help", "---x"] {
        let read = read(&["--path", value, "-v=1"]);
        let flags = vec![format!("--path={value}"), "--v=1".to_owned()];
        assert_eq!(read, (flags, End::Operands));
    }
}

#[test]
fn reading_stops_at_the_first_operand() {
    for stop in ["-", "--", "word", "", " --version"] {
        let (flags, end) = read(&["-version", stop, "--nope", "--help"]);
        assert_eq!((flags.len(), end), (1, End::Operands), "{stop:?}");
    }
}

#[test]
fn a_command_after_a_flag_is_no_operand() {
    let reason = "ask has to be the first argument".to_owned();
    for args in [["-version", "ask"], ["ask", "-version"]] {
        assert_eq!(read(&args).1, End::Invalid(reason.clone()), "{args:?}");
    }
}

#[test]
fn help_is_asked_for_in_many_ways() {
    for help in ["-h", "--h", "-help", "--help", "--help=false", "-h="] {
        assert_eq!(read(&["-v", "1", help, "--nope"]), (vec!["--v=1".to_owned()], End::Help));
    }
}

#[test]
fn what_is_no_flag_is_named() {
    for (arg, reason) in [
        ("--nope", "flag provided but not defined: -nope"),
        ("-nope=1", "flag provided but not defined: -nope"),
        ("--Version", "flag provided but not defined: -Version"),
        ("--vers", "flag provided but not defined: -vers"),
        ("-v5", "flag provided but not defined: -v5"),
        ("-é", "flag provided but not defined: -é"),
        ("---path", "bad flag syntax: ---path"),
        ("---", "bad flag syntax: ---"),
        ("-=x", "bad flag syntax: -=x"),
        ("--=", "bad flag syntax: --="),
        ("--path", "flag needs an argument: -path"),
        ("-v", "flag needs an argument: -v"),
    ] {
        assert_eq!(read(&["-version", arg]).1, End::Invalid(reason.to_owned()));
    }
}

#[test]
fn the_error_of_a_value_names_the_flag() {
    for (arg, reason) in [
        ("--version=yes", r#"invalid boolean value "yes" for -version: parse error"#),
        (
            "--v=x\"",
            r#"invalid value "x\"" for flag -v: strconv.ParseUint: parsing "x\"": invalid syntax"#,
        ),
    ] {
        let error = flags().try_get_matches_from(["test", arg]).expect_err(arg);
        let source = std::error::Error::source(&error).expect("a reason");
        assert_eq!(source.to_string(), reason);
    }
}

#[test]
fn reads_booleans() {
    accepts(parse_bool, ["1", "t", "T", "TRUE", "true", "True"].map(|text| (text, true)));
    accepts(parse_bool, ["0", "f", "F", "FALSE", "false", "False"].map(|text| (text, false)));
    refuses(parse_bool, "parse error", ["", "tRUE", "yes", "on", "2", " true"]);
    accepts(bool_func, [("", true), ("1", true), ("False", false)]);
    refuses(bool_func, r#"strconv.ParseBool: parsing "x": invalid syntax"#, ["x"]);
}

#[test]
fn reads_integers() {
    accepts(int, [("0", 0), ("9809", 9809), ("-1", -1), ("+5", 5), ("0x1F", 31), ("0X10", 16)]);
    accepts(int, [("0b11", 3), ("0o17", 15), ("017", 15), ("00", 0), ("-0x10", -16)]);
    accepts(int, [("1_000", 1000), ("0_7", 7), ("0x_1", 1)]);
    accepts(int, [("9223372036854775807", i64::MAX), ("-0x8000000000000000", i64::MIN)]);
    refuses(int, "parse error", ["", "+", "--1", "abc", "1.5", " 1", "1e3", "08", "0x", "0b2"]);
    refuses(
        int,
        "parse error",
        ["_1", "1_", "1__0", "0_", "0x_", "0__7", "9223372036854775808_", "١"],
    );
    refuses(int, "value out of range", ["9223372036854775808", "-9223372036854775809"]);
    refuses(int, "value out of range", ["99999999999999999999x", "99999999999999999999_"]);
}

#[test]
fn reads_verbosities() {
    accepts(verbosity, [("0", 0), ("007", 7), ("2147483647", i32::MAX as u32)]);
    for text in ["", "-1", "+3", "0x5", "1_0", "1.5", " 1", "abc"] {
        let reason = format!("strconv.ParseUint: parsing {text:?}: invalid syntax");
        refuses(verbosity, &reason, [text]);
    }
    for text in ["2147483648", "2147483648x", "99999999999999999999"] {
        let reason = format!("strconv.ParseUint: parsing {text:?}: value out of range");
        refuses(verbosity, &reason, [text]);
    }
}

#[test]
fn reads_vmodule() {
    let item = |pattern: &str, level| (pattern.to_owned(), level);
    accepts(vmodule, ["", ",", ",,"].map(|text| (text, vec![])));
    accepts(vmodule, [("main=5,,m*=2,", vec![item("main", 5), item("m*", 2)])]);
    accepts(vmodule, [(" a b=0", vec![item(" a b", 0)])]);
    for text in ["main", "main=", "=1", "a=1=2", "=", " "] {
        refuses(vmodule, &format!("{text:?} does not have the pattern=N format"), [text]);
    }
    let reason = r#"parsing verbosity in "b=x": strconv.ParseUint: parsing "x": invalid syntax"#;
    refuses(vmodule, reason, ["a=1,b=x,c"]);
}

#[test]
fn tells_whether_a_quantity_is_zero() {
    let zeros = ["0", "-0", "+0", "00", "0Ki", "0e0", "0m", "0.0", "0E-5", "+", ".", "Ki", "e5"];
    accepts(non_zero_quantity, zeros.map(|text| (text, false)));
    let others = ["1", "512", "1k", "2Ki", "3M", "0.5", ".5", "1.", "1e3", "1E", "-1", "1n"];
    accepts(non_zero_quantity, others.map(|text| (text, true)));
    let reason = "unable to parse quantity's suffix";
    refuses(non_zero_quantity, reason, ["1K", "0K", "1i", "1e", "1ee5", "5Ki5", "0+5"]);
    let reason = "quantities must match the regular expression \
                  '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
    refuses(non_zero_quantity, reason, ["", " 1", "1 ", "0x", "1..2", "1e3-4", "abc"]);
}

#[test]
fn reads_durations() {
    accepts(duration, [("0", 0), ("-0", 0), ("+0", 0), ("0s", 0), ("0.9ns", 0), ("1ns", 1)]);
    accepts(duration, ["1us", "1µs", "1μs", "1000ns", "+.001ms", "1.us"].map(|text| (text, 1_000)));
    accepts(
        duration,
        [("1s", 1_000_000_000), ("1.5s", 1_500_000_000), ("-1m30s", -90_000_000_000)],
    );
    accepts(duration, [("1h1h", 7_200_000_000_000), ("0.123456789s", 123_456_789)]);
    accepts(duration, [("1.0000000000000000000000009s", 1_000_000_000)]);
    accepts(duration, [("9223372036854775807ns", i64::MAX), ("-9223372036854775808ns", i64::MIN)]);
    refuses(duration, "parse error", ["", "-", "5", "00", "1d", "1 s", "1S", "s", ".s", "1m30"]);
    refuses(duration, "parse error", ["1e3s", "--1s", "1..s", "1h-1m", " 1s", "1s ", "1_0s"]);
    refuses(duration, "parse error", ["2562048h", "9223372036854775808ns"]);
    refuses(duration, "parse error", ["-9223372036854775809ns", "99999999999999999999999s"]);
}

#[test]
fn formats_durations() {
    for (nanoseconds, text) in [
        (0, "0s"),
        (1, "1ns"),
        (-100, "-100ns"),
        (1_500, "1.5µs"),
        (-20_000_000, "-20ms"),
        (10_000_000_000, "10s"),
        (-90_000_000_000, "-1m30s"),
        (60_000_000_000, "1m0s"),
        (3_600_000_000_000, "1h0m0s"),
        (-36_061_500_000_000, "-10h1m1.5s"),
        (i64::MIN, "-2562047h47m16.854775808s"),
    ] {
        assert_eq!(format_duration(nanoseconds), text);
    }
}

#[test]
fn a_duration_is_read_as_it_was_written() {
    let mut random = Random(0x853c_49e6_748f_ea9b);
    for _ in 0..20_000 {
        let size = random.number().cast_signed();
        for nanoseconds in [size, size.wrapping_neg()] {
            let text = format_duration(nanoseconds);
            assert_eq!(duration(&text), Ok(nanoseconds), "{text}");
        }
    }
}

/// Each part is a number of its unit, rounded down to a nanosecond, in whatever order.
#[test]
fn a_duration_is_the_sum_of_its_parts_with_its_sign() {
    const UNITS: [(&str, i128); 6] = [
        ("ns", 1),
        ("us", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("h", 3_600_000_000_000),
    ];
    let mut random = Random(0xda3e_39cb_94b9_5bdb);
    let mut accepted = 0;
    for _ in 0..20_000 {
        let (mut text, mut sum) = (String::new(), 0);
        for _ in 0..1 + random.below(4) {
            let (unit, size) = UNITS[random.below(UNITS.len())];
            let whole = random.number() >> (10 + random.below(40));
            let places = random.below(10);
            let fraction = random.below(10_usize.pow(places as u32));
            text += &match places {
                0 => format!("{whole}{unit}"),
                _ => format!("{whole}.{fraction:0places$}{unit}"),
            };
            sum += i128::from(whole) * size;
            sum += fraction as i128 * size / 10_i128.pow(places as u32);
        }
        for (sign, sum) in [("", sum), ("+", sum), ("-", -sum)] {
            let expected = i64::try_from(sum).map_err(|_| PARSE);
            let text = format!("{sign}{text}");
            assert_eq!(duration(&text), expected, "{text}");
            accepted += usize::from(expected.is_ok());
        }
    }
    assert!((10_000..59_000).contains(&accepted), "{accepted}");
}

/// A sign, a prefix that names the base, digits of the base, and single underscores between digits
/// or after the prefix.
#[test]
fn an_integer_has_the_value_of_its_digits() {
    let mut random = Random(0x1405_7b7e_f767_814f);
    for _ in 0..20_000 {
        let size = random.number();
        let (prefix, digits) = match random.below(8) {
            0 => ("0b", format!("{size:b}")),
            1 => ("0B", format!("{size:b}")),
            2 => ("0", format!("{size:o}")),
            3 => ("0o", format!("{size:o}")),
            4 => ("0O", format!("{size:o}")),
            5 => ("0x", format!("{size:x}")),
            6 => ("0X", format!("{size:X}")),
            _ => ("", format!("{size}")),
        };
        let mut text = prefix.to_owned();
        for digit in digits.chars() {
            if !text.is_empty() && random.below(4) == 0 {
                text.push('_');
            }
            text.push(digit);
        }
        for (sign, value) in [("", i128::from(size)), ("+", size.into()), ("-", -i128::from(size))]
        {
            let signed = format!("{sign}{text}");
            assert_eq!(int(&signed), i64::try_from(value).map_err(|_| RANGE), "{signed}");
        }
        for wrong in [format!("_{text}"), format!("{text}_"), text.replacen('_', "__", 1)] {
            // where there was none to double
            if wrong != text {
                assert!(int(&wrong).is_err(), "{wrong}");
            }
        }
    }
}
