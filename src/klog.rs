//! The log on stderr: klog's text lines, or the JSON lines of Kubernetes components.
//!
//! The program logs through the macros of `tracing`. An error is `E`, a warning `W`, all
//! else `I`. The field `v` of `debug!` is klog's verbosity, by which `-v` and `--vmodule`
//! choose. The other fields follow the message in the order of declaration: numbers and
//! booleans bare, an absent `Option` as `null`, all else quoted. Libraries are not heard.

use std::fmt::{self, Debug, Display, Write as _};
use std::io::{self, Write as _};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, process};

use tracing::field::{self, Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber, warn};
use tracing_subscriber::Registry;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tz::{TimeZone, UtcDateTime};

use crate::sys;

/// How long a line may wait for room on stderr.
const PATIENCE: Duration = Duration::from_millis(50);
/// A pipe that has any room takes so many bytes at once (PIPE_BUF).
const PIECE: usize = 4096;

/// What is shown, and in which format.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// JSON lines instead of text.
    pub(crate) json: bool,
    /// The highest `v` that is shown (`-v`).
    pub(crate) verbosity: u32,
    /// Globs on the base name of a source file without `.rs`, and the `v` each raises its
    /// files to (`--vmodule`). The first that matches counts, a `v` of 0 aside.
    pub(crate) vmodule: Vec<(String, u32)>,
}

/// Installs the log of the process. The first call stands, later ones do nothing.
pub(crate) fn init(options: &Options) {
    let subscriber = Registry::default().with(Klog::new(options.clone()));
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// The text as a Go string literal (`strconv.Quote`), with its quotes.
pub(crate) fn quote(text: &str) -> impl Display {
    fmt::from_fn(move |f| {
        f.write_char('"')?;
        for c in text.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                '\x07' => f.write_str("\\a")?,
                '\x08' => f.write_str("\\b")?,
                '\t' => f.write_str("\\t")?,
                '\n' => f.write_str("\\n")?,
                '\x0b' => f.write_str("\\v")?,
                '\x0c' => f.write_str("\\f")?,
                '\r' => f.write_str("\\r")?,
                '\0'..' ' | '\x7f' => write!(f, "\\x{:02x}", u32::from(c))?,
                _ if is_printable(c) => f.write_char(c)?,
                ..='\u{ffff}' => write!(f, "\\u{:04x}", u32::from(c))?,
                _ => write!(f, "\\U{:08x}", u32::from(c))?,
            }
        }
        f.write_char('"')
    })
}

/// Whether the character is a letter, mark, number, punctuation, symbol or the blank.
fn is_printable(c: char) -> bool {
    // The standard library shows its table only through `escape_debug`, which would escape
    // a combining mark too if it were the first character.
    c.is_ascii() || format!("x{c}").escape_debug().count() == 2
}

/// The text as a JSON string (Go's `json.Marshal`), with its quotes.
pub(crate) fn json_string(text: &str) -> String {
    json_escaped(text, true).to_string()
}

/// The JSON lines of the log themselves (`html` off) leave the characters alone that mean
/// something to HTML and JavaScript, and know fewer short escapes.
fn json_escaped(text: &str, html: bool) -> impl Display {
    fmt::from_fn(move |f| {
        f.write_char('"')?;
        for c in text.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                '\t' => f.write_str("\\t")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\x08' if html => f.write_str("\\b")?,
                '\x0c' if html => f.write_str("\\f")?,
                '<' | '>' | '&' | '\u{2028}' | '\u{2029}' if html => {
                    write!(f, "\\u{:04x}", u32::from(c))?;
                }
                '\0'..' ' => write!(f, "\\u{:04x}", u32::from(c))?,
                _ => f.write_char(c)?,
            }
        }
        f.write_char('"')
    })
}

/// A text of several lines, set off by tabs.
fn set_off(text: &str) -> impl Display {
    fmt::from_fn(move |f| {
        f.write_str("<\n")?;
        for line in text.split_terminator('\n') {
            writeln!(f, "\t{line}")?;
        }
        f.write_str(" >")
    })
}

struct Klog {
    options: Options,
    pid: u32,
    zone: LazyLock<TimeZone>,
    /// Lines that were not written since the last one that was.
    lost: AtomicU64,
}

impl Klog {
    fn new(options: Options) -> Self {
        Self {
            options,
            pid: process::id(),
            zone: LazyLock::new(local_zone),
            lost: AtomicU64::new(0),
        }
    }

    /// A line that stderr does not take in time is lost, and so is each one after it until there is
    /// room again: the kubelet's calls must not wait for whoever reads the log.
    fn write(&self, line: &[u8]) {
        let lost = self.lost.load(Ordering::Relaxed);
        let limit = if lost == 0 { PATIENCE } else { Duration::ZERO };
        let mut stderr = io::stderr().lock();
        for piece in line.chunks(PIECE) {
            if !sys::has_room(&stderr, limit) {
                self.lost.fetch_add(1, Ordering::Relaxed);
                return;
            }
            // There is nobody left to tell that the log cannot be written.
            let _ = stderr.write_all(piece);
        }
        drop(stderr);
        if self.lost.swap(0, Ordering::Relaxed) > 0 {
            warn!(lines = lost, "The log was not read, lines of it are lost");
        }
    }

    /// The highest `v` that is shown of the source file.
    fn verbosity(&self, metadata: &Metadata<'_>) -> u32 {
        let file = path_tail(metadata, 1);
        let name = file.strip_suffix(".rs").unwrap_or(file).as_bytes();
        let mut rules = self.options.vmodule.iter();
        let raised = rules.find(|(glob, v)| *v > 0 && matches_glob(glob.as_bytes(), name));
        raised.map_or(0, |(_, v)| *v).max(self.options.verbosity)
    }

    fn shows(&self, metadata: &Metadata<'_>) -> bool {
        is_ours(metadata.target())
            && (*metadata.level() <= Level::INFO || self.verbosity(metadata) > 0)
    }

    /// The line of an event that happened `now` after the epoch. `None` if its `v` is too
    /// high.
    fn line(&self, event: &Event<'_>, now: Duration) -> Option<String> {
        let metadata = event.metadata();
        let mut fields = Fields {
            json: self.options.json,
            pending: metadata.fields().iter(),
            v: 0,
            message: String::new(),
            pairs: String::new(),
        };
        event.record(&mut fields);
        fields.skip_to(None);
        if fields.v > u64::from(self.verbosity(metadata)) {
            return None;
        }
        Some(if self.options.json {
            json_line(metadata, &fields, now)
        } else {
            self.text_line(metadata, &fields, now)
        })
    }

    fn text_line(&self, metadata: &Metadata<'_>, fields: &Fields, now: Duration) -> String {
        let severity = match *metadata.level() {
            Level::ERROR => 'E',
            Level::WARN => 'W',
            _ => 'I',
        };
        let seconds = now.as_secs().cast_signed();
        let zone = self.zone.find_local_time_type(seconds);
        let offset = zone.map_or(0, |zone| zone.ut_offset());
        let time = UtcDateTime::from_timespec(seconds + i64::from(offset), 0)
            .expect("the clock shows a year that fits into 32 bits");
        format!(
            "{severity}{:02}{:02} {:02}:{:02}:{:02}.{:06} {:>7} {}:{}] {}{}\n",
            time.month(),
            time.month_day(),
            time.hour(),
            time.minute(),
            time.second(),
            now.subsec_micros(),
            self.pid,
            path_tail(metadata, 1),
            metadata.line().unwrap_or_default(),
            quote(&fields.message),
            fields.pairs,
        )
    }
}

fn json_line(metadata: &Metadata<'_>, fields: &Fields, now: Duration) -> String {
    let v = match *metadata.level() {
        Level::ERROR => String::new(),
        _ => format!(",\"v\":{}", fields.v),
    };
    let line = metadata.line().unwrap_or_default();
    let caller = format!("{}:{line}", path_tail(metadata, 2));
    format!(
        "{{\"ts\":{},\"caller\":{},\"msg\":{}{v}{}}}\n",
        now.as_nanos() as f64 / 1e6,
        json_escaped(&caller, false),
        json_escaped(&fields.message, false),
        fields.pairs,
    )
}

impl<S: Subscriber> Layer<S> for Klog {
    // Also decides, once for each place that logs, whether that place is ever asked again.
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.shows(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let quiet = self.options.verbosity == 0 && self.options.vmodule.is_empty();
        Some(if quiet { LevelFilter::INFO } else { LevelFilter::DEBUG })
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        if let Some(line) = self.line(event, now.unwrap_or_default()) {
            self.write(line.as_bytes());
        }
    }
}

/// What an event says, in the making.
struct Fields {
    json: bool,
    /// The declared fields that were not seen yet.
    pending: field::Iter,
    v: u64,
    message: String,
    /// Keys and values, as the line shows them.
    pairs: String,
}

impl Fields {
    /// `tracing` passes over an absent `Option`; Go prints it.
    fn skip_to(&mut self, field: Option<&Field>) {
        while let Some(next) = self.pending.next()
            && Some(&next) != field
        {
            self.push(&next, "null");
        }
    }

    fn push(&mut self, field: &Field, value: impl Display) {
        self.pairs +=
            &if self.json { format!(",\"{field}\":{value}") } else { format!(" {field}={value}") };
    }

    fn bare(&mut self, field: &Field, value: impl Display) {
        self.skip_to(Some(field));
        self.push(field, value);
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "v" {
            self.skip_to(Some(field));
            self.v = value;
        } else {
            self.bare(field, value);
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        match u64::try_from(value) {
            Ok(value) => self.record_u64(field, value),
            Err(_) => self.bare(field, value),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.bare(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.skip_to(Some(field));
        if field.name() == "message" {
            self.message = value.to_owned();
        } else if self.json {
            self.push(field, json_escaped(value, false));
        } else if value.contains('\n') {
            self.push(field, set_off(value));
        } else {
            self.push(field, quote(value));
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// Whether an event's target is a module of this program.
fn is_ours(target: &str) -> bool {
    target.split("::").next() == module_path!().split("::").next()
}

/// The last components of the path of the source file.
fn path_tail<'a>(metadata: &Metadata<'a>, components: usize) -> &'a str {
    let path = metadata.file().unwrap_or_default();
    let cut = path.rmatch_indices(['/', '\\']).nth(components - 1);
    cut.map_or(path, |(slash, _)| &path[slash + 1..])
}

/// `*` is any text, `?` any one character.
fn matches_glob(glob: &[u8], name: &[u8]) -> bool {
    match (glob, name) {
        ([], []) => true,
        ([b'*', glob @ ..], _) => (0..=name.len()).any(|n| matches_glob(glob, &name[n..])),
        ([b'?', glob @ ..], [_, name @ ..]) => matches_glob(glob, name),
        ([a, glob @ ..], [b, name @ ..]) => a == b && matches_glob(glob, name),
        _ => false,
    }
}

/// The zone that `TZ` names, else that of the host; UTC where its file is missing.
fn local_zone() -> TimeZone {
    let name = match env::var("TZ") {
        Err(env::VarError::NotPresent) => "localtime".to_owned(),
        name => name.unwrap_or_default(),
    };
    TimeZone::from_posix_tz(&name).unwrap_or_else(|_| TimeZone::utc())
}

#[cfg(test)]
mod tests;
