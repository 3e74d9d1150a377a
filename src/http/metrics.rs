//! `/metrics`: the status in Prometheus' text format.

use std::fmt::{Display, Write as _};
use std::time::UNIX_EPOCH;

use http::StatusCode;

use super::{Answer, Context, with_type};

const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
const PREFIX: &str = "csi_node_driver_registrar_";

pub(super) fn render(context: &Context) -> Answer {
    let status = context.status.borrow();
    let counts = &status.counts;
    let mut page = Page::default();
    page.gauge("build_info", "The version that runs");
    page.labelled("version", context.version, 1);
    if let Some(registration) = &status.registration {
        page.gauge(
            "registered",
            "Whether the kubelet has confirmed the registration on the present socket",
        );
        let registered = i32::from(status.ready().is_ok());
        page.labelled("driver_name", &registration.driver_name, registered);
    }
    page.counter("get_info_total", "GetInfo calls by the kubelet");
    page.sample(counts.get_info);
    page.counter("registration_status_total", "NotifyRegistrationStatus calls by the kubelet");
    page.labelled("status", "registered", counts.registered);
    page.labelled("status", "refused", counts.refused);
    if let Some(time) = status.last_registration {
        page.gauge(
            "last_registration_timestamp_seconds",
            "When the kubelet last confirmed the registration",
        );
        page.sample(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64());
    }
    page.counter("socket_binds_total", "Registration sockets that were made");
    page.sample(counts.socket_binds);
    page.counter("driver_attempts_total", "Attempts to learn the driver's name");
    page.labelled("result", "ok", counts.driver_ok);
    page.labelled("result", "unreachable", counts.driver_unreachable);
    page.labelled("result", "error", counts.driver_error);
    with_type(StatusCode::OK, CONTENT_TYPE, page.text)
}

/// A metric, then its samples, then the next metric. Names and helps need no escapes.
#[derive(Default)]
struct Page {
    text: String,
    metric: &'static str,
}

impl Page {
    fn gauge(&mut self, metric: &'static str, help: &str) {
        self.begin(metric, help, "gauge");
    }

    fn counter(&mut self, metric: &'static str, help: &str) {
        self.begin(metric, help, "counter");
    }

    fn begin(&mut self, metric: &'static str, help: &str, kind: &str) {
        self.metric = metric;
        self.line(format_args!("# HELP {PREFIX}{metric} {help}"));
        self.line(format_args!("# TYPE {PREFIX}{metric} {kind}"));
    }

    fn sample(&mut self, value: impl Display) {
        let metric = self.metric;
        self.line(format_args!("{PREFIX}{metric} {value}"));
    }

    fn labelled(&mut self, label: &str, is: &str, value: impl Display) {
        let metric = self.metric;
        let is = is.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
        self.line(format_args!("{PREFIX}{metric}{{{label}=\"{is}\"}} {value}"));
    }

    fn line(&mut self, line: impl Display) {
        writeln!(self.text, "{line}").expect("a string takes any text");
    }
}
