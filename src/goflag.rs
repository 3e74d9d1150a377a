//! The command line grammar of Go's `flag` package in front of clap, and the
//! grammars of the values that flags hold. The reasons of errors are Go's.

use std::convert::Infallible;
use std::fmt::Display;

use clap::{Arg, Command};

const PARSE: &str = "parse error";
const SYNTAX: &str = "invalid syntax";
const RANGE: &str = "value out of range";

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000 * MICROSECOND;
const SECOND: u64 = 1_000 * MILLISECOND;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// What follows the last argument that [`walk`] has read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Nothing, or operands, which nobody reads.
    Operands,
    /// A request for help.
    Help,
    /// Something that is no flag, in Go's words.
    Invalid(String),
}

/// Reads `args` as Go does, with the flags of `command`. Returns the flags up
/// to the end as `--name=value`, the only form left for clap to read.
pub(crate) fn walk(
    command: &Command,
    args: impl IntoIterator<Item = String>,
) -> (Vec<String>, End) {
    let mut args = args.into_iter();
    let mut flags = Vec::new();
    loop {
        match next_flag(command, &mut args) {
            Ok(flag) => flags.push(flag),
            Err(end) => return (flags, end),
        }
    }
}

fn next_flag(command: &Command, args: &mut impl Iterator<Item = String>) -> Result<String, End> {
    let arg = args.next().ok_or(End::Operands)?;
    let Some(name) = arg.strip_prefix('-') else {
        // Go would pass over it, and do something else than was asked for.
        return Err(match command.find_subcommand(&arg) {
            Some(_) => End::Invalid(format!("{arg} has to be the first argument")),
            None => End::Operands,
        });
    };
    if matches!(name, "" | "-") {
        return Err(End::Operands);
    }
    let name = name.strip_prefix('-').unwrap_or(name);
    if name.starts_with(['-', '=']) {
        return Err(End::Invalid(format!("bad flag syntax: {arg}")));
    }
    let (name, value) = match name.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (name, None),
    };
    if matches!(name, "h" | "help") {
        return Err(End::Help);
    }
    let flag = command
        .get_arguments()
        .find(|flag| flag.get_long() == Some(name))
        .ok_or_else(|| End::Invalid(format!("flag provided but not defined: -{name}")))?;
    let value = match value {
        Some(value) => value,
        None if flag.is_require_equals_set() => "true".to_owned(),
        None => {
            args.next().ok_or_else(|| End::Invalid(format!("flag needs an argument: -{name}")))?
        }
    };
    Ok(format!("--{name}={value}"))
}

/// A flag with a value, `-name value` or `-name=value`, that `grammar` reads.
pub(crate) fn valued<T, E>(name: &'static str, grammar: fn(&str) -> Result<T, E>) -> Arg
where
    T: Clone + Send + Sync + 'static,
    E: Display + 'static,
{
    Arg::new(name).long(name).value_parser(move |text: &str| {
        grammar(text).map_err(|reason| format!("invalid value {text:?} for flag -{name}: {reason}"))
    })
}

/// A boolean flag, `-name` or `-name=value`, that `grammar` reads.
pub(crate) fn boolean<E>(name: &'static str, grammar: fn(&str) -> Result<bool, E>) -> Arg
where
    E: Display + 'static,
{
    let parser = move |text: &str| {
        grammar(text)
            .map_err(|reason| format!("invalid boolean value {text:?} for -{name}: {reason}"))
    };
    Arg::new(name).long(name).num_args(0..=1).require_equals(true).value_parser(parser)
}

/// The value as it stands.
pub(crate) fn string(text: &str) -> Result<String, Infallible> {
    Ok(text.to_owned())
}

/// `strconv.ParseBool`.
pub(crate) fn parse_bool(text: &str) -> Result<bool, &'static str> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(PARSE),
    }
}

/// The boolean of a flag that is a function in the original: empty is true,
/// and the error is worded otherwise.
pub(crate) fn bool_func(text: &str) -> Result<bool, String> {
    let value = if text.is_empty() { "true" } else { text };
    parse_bool(value).map_err(|_| format!("strconv.ParseBool: parsing {text:?}: invalid syntax"))
}

/// Reads one digit after the other, so that of two faults the first counts.
fn digits(text: &str, base: u32, max: u64) -> Result<u64, &'static str> {
    if text.is_empty() {
        return Err(SYNTAX);
    }
    text.chars().try_fold(0u64, |number, c| {
        let digit = c.to_digit(base).ok_or(SYNTAX)?;
        number
            .checked_mul(base.into())
            .and_then(|number| number.checked_add(digit.into()))
            .filter(|number| *number <= max)
            .ok_or(RANGE)
    })
}

/// A Go integer literal with an optional sign: `9809 -1 0x10 0b11 0o17 017 1_000`.
pub(crate) fn int(text: &str) -> Result<i64, &'static str> {
    let unsigned = strip_sign(text);
    let (number, base) = match unsigned.as_bytes() {
        [b'0', b'x' | b'X', _, ..] => (&unsigned[2..], 16),
        [b'0', b'o' | b'O', _, ..] => (&unsigned[2..], 8),
        [b'0', b'b' | b'B', _, ..] => (&unsigned[2..], 2),
        [b'0', _, ..] => (&unsigned[1..], 8),
        _ => (unsigned, 10),
    };
    let value = digits(&number.replace('_', ""), base, u64::MAX)
        .map_err(|reason| if reason == SYNTAX { PARSE } else { reason })?;
    // An underscore stands between two digits, or between the prefix and a digit.
    if number.ends_with('_') || number.contains("__") || unsigned.starts_with('_') {
        return Err(PARSE);
    }
    with_sign_of(text, value).ok_or(RANGE)
}

/// A verbosity: plain decimal digits, at most 2147483647.
pub(crate) fn verbosity(text: &str) -> Result<u32, String> {
    digits(text, 10, i32::MAX as u64)
        .map(|number| u32::try_from(number).expect("at most 2147483647"))
        .map_err(|reason| format!("strconv.ParseUint: parsing {text:?}: {reason}"))
}

/// klog's `pattern=N,...`; empty items are skipped.
pub(crate) fn vmodule(text: &str) -> Result<Vec<(String, u32)>, String> {
    let item = |item: &str| match item.split('=').collect::<Vec<_>>()[..] {
        [pattern, level] if !pattern.is_empty() && !level.is_empty() => verbosity(level)
            .map(|level| (pattern.to_owned(), level))
            .map_err(|reason| format!("parsing verbosity in {item:?}: {reason}")),
        _ => Err(format!("{item:?} does not have the pattern=N format")),
    };
    text.split(',').filter(|text| !text.is_empty()).map(item).collect()
}

/// A Kubernetes quantity, such as `512`, `1k`, `2Ki`, `0.5` or `1e3`, of which
/// only matters whether it is other than zero. Even a mere sign is a zero.
pub(crate) fn non_zero_quantity(text: &str) -> Result<bool, &'static str> {
    const SUFFIXES: [&str; 16] =
        ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let unsigned = strip_sign(text);
    let (_, rest) = split_digits(unsigned);
    let (_, suffix) = rest.strip_prefix('.').map_or(("", rest), split_digits);
    let exponent = strip_sign(suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c)));
    if text.is_empty() || !split_digits(exponent).1.is_empty() {
        return Err("quantities must match the regular expression \
                    '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'");
    }
    let exponent = suffix.strip_prefix(['e', 'E']);
    let is_exponent = exponent.is_some_and(|exponent| exponent.parse::<i64>().is_ok());
    if !is_exponent && !SUFFIXES.contains(&suffix) {
        return Err("unable to parse quantity's suffix");
    }
    let number = &unsigned[..unsigned.len() - suffix.len()];
    Ok(number.contains(|c| matches!(c, '1'..='9')))
}

/// A Go duration, such as `1m30s` or `-1.5h`, in nanoseconds.
pub(crate) fn duration(text: &str) -> Result<i64, &'static str> {
    let nanoseconds = match strip_sign(text) {
        "0" => Some(0),
        unsigned => sum_of_units(unsigned),
    };
    nanoseconds.and_then(|nanoseconds| with_sign_of(text, nanoseconds)).ok_or(PARSE)
}

fn sum_of_units(mut text: &str) -> Option<u64> {
    let mut sum = None;
    while !text.is_empty() {
        let (whole, rest) = split_digits(text);
        let (fraction, rest) = rest.strip_prefix('.').map_or(("", rest), split_digits);
        let end = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
        let (unit, rest) = rest.split_at(end);
        let unit = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => MICROSECOND,
            "ms" => MILLISECOND,
            "s" => SECOND,
            "m" => MINUTE,
            "h" => HOUR,
            _ => return None,
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let whole = format!("0{whole}").parse::<u64>().ok()?.checked_mul(unit)?;
        // Even of an hour, what follows the 18th digit is far below a nanosecond.
        let fraction = format!("{fraction:0<18.18}").parse::<u128>().ok()? * u128::from(unit);
        let fraction = u64::try_from(fraction / 10u128.pow(18)).ok()?;
        sum = Some(whole.checked_add(fraction)?.checked_add(sum.unwrap_or(0))?);
        text = rest;
    }
    sum
}

/// A duration in Go's notation: `0s`, `-1.5µs`, `1h0m30s`.
pub(crate) fn format_duration(nanoseconds: i64) -> String {
    let size = nanoseconds.unsigned_abs();
    let (unit, places, name) = match size {
        1..MICROSECOND => (1, 0, "ns"),
        MICROSECOND..MILLISECOND => (MICROSECOND, 3, "µs"),
        MILLISECOND..SECOND => (MILLISECOND, 6, "ms"),
        _ => (SECOND, 9, "s"),
    };
    let mut text = String::from(if nanoseconds < 0 { "-" } else { "" });
    if size >= HOUR {
        text += &format!("{}h", size / HOUR);
    }
    if size >= MINUTE {
        text += &format!("{}m", size % HOUR / MINUTE);
    }
    let rest = size % MINUTE;
    text += &format!("{}.{:0places$}", rest / unit, rest % unit);
    text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
    text + name
}

fn strip_sign(text: &str) -> &str {
    text.strip_prefix(['+', '-']).unwrap_or(text)
}

/// `size`, negative if `text` is, unless it is beyond an i64.
fn with_sign_of(text: &str, size: u64) -> Option<i64> {
    if text.starts_with('-') { 0i64.checked_sub_unsigned(size) } else { size.try_into().ok() }
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests;
