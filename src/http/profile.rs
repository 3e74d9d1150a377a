//! `/debug/pprof/`: what of Go's profiling endpoints has a meaning here.

use std::env;

use http::StatusCode;
use http::header::HeaderValue;

use super::{Answer, HTML, TEXT, text, with_nosniff, with_type};

const INDEX: &str = "<!doctype html>
<title>/debug/pprof/</title>
<ul>
<li><a href=\"cmdline\">cmdline</a>: the command line
<li><a href=\"profile?seconds=30\">profile</a>: CPU profile, in builds with the feature pprof
</ul>
";

pub(super) async fn render(name: &str, query: Option<&str>) -> Answer {
    with_nosniff(match name {
        "" => with_type(StatusCode::OK, HTML, INDEX),
        "cmdline" => {
            let args = env::args_os().map(|arg| arg.into_encoded_bytes());
            let args = args.collect::<Vec<_>>().join(&0);
            with_type(StatusCode::OK, TEXT, args)
        }
        "profile" => cpu(query).await,
        _ => {
            let mut response = text(StatusCode::NOT_FOUND, "Unknown profile\n");
            let mark = HeaderValue::from_static("1");
            response.headers_mut().insert("x-go-pprof", mark);
            response
        }
    })
}

#[cfg(not(feature = "pprof"))]
async fn cpu(_: Option<&str>) -> Answer {
    let reason = "this binary was built without the cargo feature pprof\n";
    text(StatusCode::NOT_FOUND, reason)
}

/// The samples of `seconds=N` seconds, 30 by default, in the format of `go tool pprof`.
#[cfg(feature = "pprof")]
async fn cpu(query: Option<&str>) -> Answer {
    let mut pairs = query.unwrap_or_default().split('&');
    let seconds = pairs.find_map(|pair| pair.strip_prefix("seconds=")?.parse().ok());
    let time = std::time::Duration::from_secs(seconds.filter(|n| *n > 0).unwrap_or(30));
    match sample(time).await {
        Ok(profile) => {
            let mut response = with_type(StatusCode::OK, "application/octet-stream", profile);
            let name = HeaderValue::from_static("attachment; filename=\"profile\"");
            response.headers_mut().insert("content-disposition", name);
            response
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n")),
    }
}

#[cfg(feature = "pprof")]
async fn sample(time: std::time::Duration) -> anyhow::Result<Vec<u8>> {
    use std::io::Write as _;

    use pprof::protos::Message as _;

    const SAMPLES_PER_SECOND: i32 = 100;
    let guard = pprof::ProfilerGuard::new(SAMPLES_PER_SECOND)?;
    tokio::time::sleep(time).await;
    let profile = guard.report().build()?.pprof()?;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&profile.encode_to_vec())?;
    Ok(gzip.finish()?)
}
