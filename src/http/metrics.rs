//! `/metrics`: the status in Prometheus' text format.

use std::fmt;
use std::time::UNIX_EPOCH;

use http::StatusCode;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::prometheus_text::{CONTENT_TYPE, encode};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::{Answer, Context, with_type};

pub(super) fn render(context: &Context) -> Answer {
    let mut registry = Registry::with_prefix("csi_node_driver_registrar");
    registry.register_collector(Box::new(context.clone()));
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => with_type(StatusCode::OK, CONTENT_TYPE, text),
        Err(error) => super::text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// One value of a metric, told from its others by labels.
type Labelled<'a, M> = (&'a [(&'static str, &'a str)], M);

impl Collector for Context {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let status = self.status.borrow();
        let counts = &status.counts;
        let version = [("version", self.version)];
        family(
            &mut encoder,
            "build_info",
            "The version that runs",
            &[(&version, ConstGauge::new(1))],
        )?;
        if let Some(registration) = &status.registration {
            let driver = [("driver_name", registration.driver_name.as_str())];
            family(
                &mut encoder,
                "registered",
                "Whether the kubelet has confirmed the registration on the present socket",
                &[(&driver, ConstGauge::new(i64::from(status.ready().is_ok())))],
            )?;
        }
        family(
            &mut encoder,
            "get_info",
            "GetInfo calls by the kubelet",
            &[(&[], ConstCounter::new(counts.get_info))],
        )?;
        family(
            &mut encoder,
            "registration_status",
            "NotifyRegistrationStatus calls by the kubelet",
            &[
                (&[("status", "registered")], ConstCounter::new(counts.registered)),
                (&[("status", "refused")], ConstCounter::new(counts.refused)),
            ],
        )?;
        if let Some(time) = status.last_registration {
            let time = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            family(
                &mut encoder,
                "last_registration_timestamp_seconds",
                "When the kubelet last confirmed the registration",
                &[(&[], ConstGauge::new(time.as_secs_f64()))],
            )?;
        }
        family(
            &mut encoder,
            "socket_binds",
            "Registration sockets that were made",
            &[(&[], ConstCounter::new(counts.socket_binds))],
        )?;
        family(
            &mut encoder,
            "driver_attempts",
            "Attempts to learn the driver's name",
            &[
                (&[("result", "ok")], ConstCounter::new(counts.driver_ok)),
                (&[("result", "unreachable")], ConstCounter::new(counts.driver_unreachable)),
                (&[("result", "error")], ConstCounter::new(counts.driver_error)),
            ],
        )
    }
}

fn family<M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: &[Labelled<'_, M>],
) -> fmt::Result {
    let Some((_, first)) = values.first() else {
        return Ok(());
    };
    let mut descriptor = encoder.encode_descriptor(name, help, None, first.metric_type())?;
    for (labels, value) in values {
        value.encode(descriptor.encode_family(labels)?)?;
    }
    Ok(())
}
