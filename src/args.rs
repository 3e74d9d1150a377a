//! The flags: what there is, what they mean, and which of them go together.

use std::error::Error;
use std::ffi::OsString;
use std::fmt::{self, Display};
use std::path::PathBuf;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::goflag::{self, End, boolean, valued};
use crate::klog;

const NAME: &str = "csi-node-driver-registrar";
/// The subcommand, and the value of `--mode`, that asks a running registrar.
const PROBE: &str = "kubelet-registration-probe";

/// Flags of earlier releases, accepted without effect: klog's up to 2.10, and those of 0.x.
const PAST: [(&str, Form); 13] = [
    ("logtostderr", switch),
    ("alsologtostderr", switch),
    ("stderrthreshold", text),
    ("log_dir", text),
    ("log_file", text),
    ("log_file_max_size", text),
    ("skip_headers", switch),
    ("skip_log_headers", switch),
    ("add_dir_header", switch),
    ("log_backtrace_at", text),
    ("one_output", switch),
    ("driver-requires-attachment", switch),
    ("pod-info-mount-version", text),
];

/// Whether a flag is boolean or takes a text.
type Form = fn(&'static str) -> Arg;

/// What the command line asks for.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// This text, on stdout.
    Help(String),
    /// A run.
    Config(Box<Config>),
}

/// The settings of one run.
#[derive(Debug)]
pub(crate) struct Config {
    /// The program's name as it was called.
    pub(crate) argv0: String,
    /// Print the version and end.
    pub(crate) version: bool,
    /// Ask a running registrar and end.
    pub(crate) probe: bool,
    /// `--mode` as given.
    pub(crate) mode: String,
    /// Where the CSI driver listens.
    pub(crate) csi_address: String,
    /// The endpoint handed to the kubelet; required, yet possibly empty here.
    pub(crate) kubelet_registration_path: String,
    /// The directory of the registration socket.
    pub(crate) plugin_registration_path: String,
    /// The bound of one call, above zero.
    pub(crate) timeout: Duration,
    /// The bound of reaching the driver and learning its name, if there is one.
    pub(crate) startup_timeout: Option<Duration>,
    /// The HTTP server's address, if one is wanted, or why the flags contradict each other.
    pub(crate) http_endpoint: Result<Option<String>, &'static str>,
    /// Serve profiles over HTTP.
    pub(crate) enable_pprof: bool,
    /// Where the reason of a failure is left for the kubelet.
    pub(crate) termination_log_path: PathBuf,
    /// `--connection-timeout` is given and not zero.
    pub(crate) connection_timeout_given: bool,
    /// The flags of earlier releases that are given.
    pub(crate) without_effect: Vec<&'static str>,
    /// How to log, or what is wrong with the logging flags.
    pub(crate) logging: Result<klog::Options, String>,
}

/// A command line that cannot be read; three lines for stderr.
#[derive(Debug)]
pub(crate) struct UsageError {
    argv0: String,
    reason: String,
}

impl Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { argv0, reason } = self;
        write!(f, "{reason}\nUsage of {argv0}:\n  {argv0} --help lists the flags")
    }
}

/// Reads the command line, `argv[0]` included.
pub(crate) fn parse(argv: impl IntoIterator<Item = OsString>) -> Result<Parsed, UsageError> {
    let mut argv = argv.into_iter().map(|arg| arg.to_string_lossy().into_owned()).peekable();
    let argv0 = argv.next().unwrap_or_default();
    let subcommand = argv.next_if(|arg| arg == PROBE);
    let mut command = command();
    let (flags, end) = goflag::walk(&command, argv);

    // Of two errors the first one counts, so what precedes the end is looked at first.
    let args = [argv0.clone()].into_iter().chain(subcommand).chain(flags);
    let reason = match (command.try_get_matches_from_mut(args), end) {
        (Ok(matches), End::Operands) => {
            return Ok(Parsed::Config(Box::new(Config::new(argv0, matches))));
        }
        (Ok(_), End::Help) => return Ok(Parsed::Help(command.render_help().to_string())),
        (Ok(_), End::Invalid(reason)) => reason,
        (Err(error), _) => match error.source() {
            Some(reason) => reason.to_string(),
            None => error.to_string(),
        },
    };
    Err(UsageError { argv0, reason })
}

impl Config {
    fn new(argv0: String, mut matches: ArgMatches) -> Self {
        let matches = &mut matches;
        let past = PAST.into_iter().map(|(name, _)| name);
        let is_given = |name: &&str| matches.value_source(name) == Some(ValueSource::CommandLine);
        let without_effect = past.filter(is_given).collect();
        let mode: String = take(matches, "mode");
        let startup_timeout: Duration = take(matches, "startup-timeout");
        Self {
            argv0,
            version: take(matches, "version"),
            probe: mode == PROBE || matches.subcommand_name() == Some(PROBE),
            mode,
            csi_address: take(matches, "csi-address"),
            kubelet_registration_path: take(matches, "kubelet-registration-path"),
            plugin_registration_path: take(matches, "plugin-registration-path"),
            timeout: take(matches, "timeout"),
            startup_timeout: (!startup_timeout.is_zero()).then_some(startup_timeout),
            http_endpoint: http_endpoint(
                take(matches, "http-endpoint"),
                take(matches, "health-port"),
            ),
            enable_pprof: take(matches, "enable-pprof"),
            termination_log_path: take::<String>(matches, "termination-log-path").into(),
            connection_timeout_given: take::<i64>(matches, "connection-timeout") != 0,
            without_effect,
            logging: logging(matches),
        }
    }
}

/// The value of a flag, or the zero value of its type.
fn take<T: Clone + Default + Send + Sync + 'static>(matches: &mut ArgMatches, name: &str) -> T {
    matches.remove_one(name).unwrap_or_default()
}

fn http_endpoint(endpoint: String, port: i64) -> Result<Option<String>, &'static str> {
    match (endpoint.is_empty(), port > 0) {
        (true, true) => Ok(Some(format!(":{port}"))),
        (true, false) => Ok(None),
        (false, true) => Err("Only one of `--health-port` and `--http-endpoint` can be set"),
        (false, false) => Ok(Some(endpoint)),
    }
}

/// Checks the logging flags as the original does, in its order and words.
fn logging(matches: &mut ArgMatches) -> Result<klog::Options, String> {
    let flush: i64 = take(matches, "log-flush-frequency");
    let format: String = take(matches, "logging-format");
    let vmodule: Vec<(String, u32)> =
        matches.remove_many("vmodule").into_iter().flatten().flat_map(|v: Vec<_>| v).collect();

    let mut errors = Vec::new();
    if flush <= 0 {
        let value = goflag::format_duration(flush);
        errors.push(format!("flushFrequency: Invalid value: {value:?}: Must be greater than zero"));
    }
    if !matches!(&*format, "text" | "json") {
        errors.push(format!("format: Invalid value: {format:?}: Unsupported log format"));
    }
    if !vmodule.is_empty() && !matches!(&*format, "text" | "") {
        errors.push("vmodule: Forbidden: Only supported for text log format".to_owned());
    }
    for (flag, option) in [
        ("log-text-split-stream", "text.splitStream"),
        ("log-text-info-buffer-size", "text.infoBufferSize"),
        ("log-json-split-stream", "json.splitStream"),
        ("log-json-info-buffer-size", "json.infoBufferSize"),
    ] {
        if take(matches, flag) {
            errors.push(format!(
                "options.{option}: Forbidden: Feature LoggingAlphaOptions is disabled"
            ));
        }
    }
    match &errors[..] {
        [] => Ok(klog::Options { json: format == "json", verbosity: take(matches, "v"), vmodule }),
        [error] => Err(error.clone()),
        _ => Err(format!("[{}]", errors.join(", "))),
    }
}

/// A duration above zero.
fn positive(text: &str) -> Result<Duration, &'static str> {
    match u64::try_from(goflag::duration(text)?) {
        Ok(nanoseconds @ 1..) => Ok(Duration::from_nanos(nanoseconds)),
        _ => Err("must be greater than zero"),
    }
}

/// A duration of zero or more.
fn not_negative(text: &str) -> Result<Duration, &'static str> {
    u64::try_from(goflag::duration(text)?)
        .map(Duration::from_nanos)
        .map_err(|_| "must not be negative")
}

fn text(name: &'static str) -> Arg {
    valued(name, goflag::string)
}

fn switch(name: &'static str) -> Arg {
    boolean(name, goflag::parse_bool).value_name("bool")
}

const NOTES: &str = "\
A flag has one dash or two, its value follows = or is the next argument; that of a boolean only
follows =. A duration has units, as 500ms or 1m30s: ns, us, ms, s, m, h. The last of two wins.

Flags of earlier releases, accepted without effect:";

/// All flags, with their help.
pub(crate) fn command() -> Command {
    let past = PAST.map(|(name, _)| format!("--{name}"));
    let past: Vec<_> = past.chunks(5).map(|names| names.join(", ")).collect();
    let past = past.join(",\n  ");
    Command::new(NAME)
        .about("Registers a CSI driver with the kubelet of its node.")
        .override_usage(format!("{NAME} [flags]\n       {NAME} {PROBE} [flags]"))
        .after_help(format!("{NOTES}\n  {past}"))
        .args_override_self(true)
        .disable_help_flag(true)
        .disable_help_subcommand(true)
        .subcommand_help_heading("Command")
        .subcommand(
            Command::new(PROBE)
                .disable_help_flag(true)
                .about("Exit 0 if the kubelet has confirmed the registration, else 1"),
        )
        .next_help_heading("CSI driver")
        .args([
            text("csi-address")
                .value_name("address")
                .default_value("/run/csi/socket")
                .help("Its socket, /PATH, or HOST:PORT"),
            valued("timeout", positive)
                .value_name("duration")
                .default_value("1s")
                .help("Limit of one call, health check or probe"),
            valued("startup-timeout", not_negative)
                .value_name("duration")
                .default_value("5m")
                .help("Limit of the wait for the driver; 0 is none"),
        ])
        .next_help_heading("Kubelet registration")
        .args([
            text("kubelet-registration-path")
                .value_name("path")
                .help("The driver's socket as the kubelet sees it [required]"),
            text("plugin-registration-path")
                .value_name("dir")
                .default_value("/registration")
                .help("Directory to register in"),
            text("mode").value_name("mode").help("kubelet-registration-probe: as the command"),
        ])
        .next_help_heading("Health, metrics and profiling")
        .args([
            text("http-endpoint")
                .value_name("address")
                .help("Serve /healthz, /readyz, /metrics here, as at :9809 [default: off]"),
            switch("enable-pprof").help("Serve /debug/pprof/ there, too [default: false]"),
        ])
        .next_help_heading("Logging")
        .args([
            text("logging-format")
                .value_name("format")
                .default_value("text")
                .help("text or json, to stderr"),
            valued("v", goflag::verbosity)
                .value_name("level")
                .default_value("0")
                .help("Verbosity; 5 shows every call"),
            valued("vmodule", goflag::vmodule)
                .action(ArgAction::Append)
                .value_name("pattern=N,...")
                .help("Verbosity by source file, in text format only"),
            text("termination-log-path")
                .value_name("file")
                .default_value("/dev/termination-log")
                .help("Gets the reason of a failure,\nif it exists"),
        ])
        .next_help_heading("Information")
        .args([
            switch("version").help("Print the version and exit"),
            Arg::new("help").long("help").action(ArgAction::Help).help("Print this and exit"),
        ])
        .next_help_heading("Accepted for compatibility")
        .args([
            valued("health-port", goflag::int)
                .value_name("port")
                .default_value("0")
                .help("As --http-endpoint=:PORT; 0 is off"),
            valued("connection-timeout", goflag::duration)
                .value_name("duration")
                .help("Deprecated, without effect [default: 0s]"),
            boolean("automaxprocs", goflag::bool_func)
                .value_name("bool")
                .help("Without effect [default: false]"),
            valued("log-flush-frequency", goflag::duration)
                .value_name("duration")
                .default_value("5s")
                .help("Without effect; must be above zero"),
            switch("log-text-split-stream").help("Only false is accepted [default: false]"),
            valued("log-text-info-buffer-size", goflag::non_zero_quantity)
                .value_name("quantity")
                .help("Only 0 bytes are accepted [default: 0]"),
            switch("log-json-split-stream").help("Only false is accepted [default: false]"),
            valued("log-json-info-buffer-size", goflag::non_zero_quantity)
                .value_name("quantity")
                .help("Only 0 bytes are accepted [default: 0]"),
        ])
        .args(PAST.map(|(name, form)| form(name).hide(true)))
        .mut_args(|arg| arg.global(true))
}

#[cfg(test)]
mod tests;
