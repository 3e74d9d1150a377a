//! Where a CSI driver listens, in the forms that gRPC libraries understand.

use std::fmt;
use std::future::pending;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tracing::error;

use crate::grpc::{Channel, NoServer, Stream};
use crate::sys::{self, DirectoryWatch};

/// How long a TCP connection may take; one to a Unix socket is made or refused at once.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long a listener may keep silent.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// The time between looks where nothing tells of changes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Where the driver listens.
#[derive(Debug)]
pub(super) struct Address {
    given: String,
    /// As it is logged: a bare path gets its scheme.
    shown: String,
    target: Target,
}

#[derive(Debug, PartialEq)]
enum Target {
    Unix(PathBuf),
    /// Host and port, to be resolved anew for each connection.
    Tcp(String),
}

impl Address {
    /// Understands what gRPC libraries take as a target: a path, `unix:` with a path, or
    /// `host:port`, the last two also behind `passthrough:///`, the last behind `dns:`.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        ensure!(!text.is_empty(), "the address is empty");
        let shown = match is_rooted(text) {
            true => format!("unix://{text}"),
            false => text.to_owned(),
        };
        let target = Target::parse(&shown).with_context(|| format!("invalid address {shown}"))?;
        Ok(Self { given: text.to_owned(), shown, target })
    }

    /// As it was given.
    pub(super) fn given(&self) -> &str {
        &self.given
    }

    /// The socket file that stands there, if the driver listens at a path.
    pub(super) fn made(&self) -> Option<sys::Made> {
        match &self.target {
            Target::Unix(path) => sys::made(path),
            Target::Tcp(_) => None,
        }
    }

    /// Tells of changes around the socket file, where that is possible.
    pub(super) fn watch(&self) -> Option<DirectoryWatch> {
        match &self.target {
            Target::Unix(path) => DirectoryWatch::new(path.parent()?).ok(),
            Target::Tcp(_) => None,
        }
    }

    /// Completes when another socket file may stand there: at a change, or after a while if the watch
    /// is missing or of a directory that was replaced, or the file stands elsewhere, at the end of a
    /// symbolic link. Never if the driver does not listen at a path.
    pub(super) async fn changed(&self, watch: &mut Option<DirectoryWatch>) {
        let Target::Unix(path) = &self.target else {
            return pending().await;
        };
        let directory = path.parent().unwrap_or(path);
        let watched = |watch: &&DirectoryWatch| watch.is_of(directory) && !path.is_symlink();
        match watch.as_ref().filter(watched) {
            Some(watch) => watch.changed().await,
            None => {
                sleep(LOOK_EVERY).await;
                *watch = self.watch();
            }
        }
    }

    /// The :scheme and :authority of the requests.
    pub(super) fn origin(&self) -> http::Uri {
        let authority = match &self.target {
            Target::Unix(_) => "localhost",
            Target::Tcp(address) => address,
        };
        let origin =
            http::Uri::builder().scheme("http").authority(authority).path_and_query("/").build();
        origin.unwrap_or_default()
    }

    /// Connects and waits for the server's greeting. The error is the reason in words.
    pub(super) async fn connect(&self) -> Result<Channel, String> {
        let stream: Stream = match &self.target {
            Target::Unix(path) => {
                Box::new(sys::connect(path).await.map_err(|error| why_not(path, &error))?)
            }
            Target::Tcp(address) => {
                let connected = timeout(CONNECT_WITHIN, TcpStream::connect(address)).await;
                let connected =
                    connected.map_err(|_| format!("no connection within {CONNECT_WITHIN:?}"))?;
                let why_not = |error| format!("connect {address}: {}", sys::reason(&error));
                Box::new(connected.map_err(why_not)?)
            }
        };
        Channel::open(stream, ANSWER_WITHIN).await.map_err(|reason| {
            if let NoServer::Silent(_) = reason {
                error!(address = %self, err = %reason, "Lost connection");
            }
            reason.to_string()
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Target {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let (scheme, rest) = text.split_once(':').unwrap_or(("", text));
        let scheme = scheme.to_ascii_lowercase();
        // scheme://authority/endpoint or scheme:endpoint
        let endpoint = match rest.strip_prefix("//") {
            Some(path) if is_rooted(path) => path,
            Some(_) => "",
            None => rest,
        };
        let after_slash = || endpoint.strip_prefix('/').unwrap_or(endpoint);
        match scheme.as_str() {
            "unix" => {
                ensure!(!endpoint.is_empty(), "the path after unix:// must be absolute");
                Ok(Self::Unix(endpoint.into()))
            }
            "passthrough" if after_slash().starts_with("unix:") => Self::parse(after_slash()),
            "passthrough" | "dns" if !after_slash().is_empty() => Ok(Self::host(after_slash())),
            "passthrough" | "dns" => bail!("no host"),
            _ => Ok(Self::host(text)),
        }
    }

    /// A host without a port gets that of https, by gRPC's convention.
    fn host(text: &str) -> Self {
        let port = text.rsplit_once(':').map(|(_, port)| port);
        Self::Tcp(match port {
            Some(port) if !port.contains(']') => text.to_owned(),
            _ => format!("{text}:443"),
        })
    }
}

/// `/path`, or `C:\path` as it is written on Windows.
fn is_rooted(path: &str) -> bool {
    matches!(path.as_bytes(), [b'/', ..] | [b'A'..=b'Z' | b'a'..=b'z', b':', b'\\' | b'/', ..])
}

/// The reason in the system's words, and what to check.
fn why_not(path: &Path, error: &io::Error) -> String {
    let reason = sys::reason(error);
    match (error.kind(), sys::metadata(path)) {
        // connect(2) says "refused" of any file
        (io::ErrorKind::ConnectionRefused, Ok(file)) if !sys::is_socket(&file) => {
            format!("{} is {}, not a socket", path.display(), sys::a_kind_of_file(&file))
        }
        (io::ErrorKind::ConnectionRefused, _) => {
            format!("{reason}: the driver does not listen yet, or has left its socket behind")
        }
        (io::ErrorKind::NotFound, _) => format!(
            "{reason}: the driver has not made its socket yet, or its directory is not mounted here"
        ),
        (io::ErrorKind::PermissionDenied, _) => {
            format!("{reason}: file modes or SELinux keep this process from the driver's socket")
        }
        _ => reason,
    }
}

#[cfg(test)]
mod tests {
    use super::{Address, Target};

    #[test]
    fn understands_the_paths_of_windows_on_every_platform() {
        for (address, shown, path) in [
            ("/csi/csi.sock", "unix:///csi/csi.sock", "/csi/csi.sock"),
            ("unix:/csi/csi.sock", "unix:/csi/csi.sock", "/csi/csi.sock"),
            ("unix:///csi/csi.sock", "unix:///csi/csi.sock", "/csi/csi.sock"),
            (r"unix://C:\csi\csi.sock", r"unix://C:\csi\csi.sock", r"C:\csi\csi.sock"),
            (r"unix://C:\\csi\\csi.sock", r"unix://C:\\csi\\csi.sock", r"C:\\csi\\csi.sock"),
            ("unix://c:/csi/csi.sock", "unix://c:/csi/csi.sock", "c:/csi/csi.sock"),
            (r"unix:C:\csi\csi.sock", r"unix:C:\csi\csi.sock", r"C:\csi\csi.sock"),
            (r"C:\csi\csi.sock", r"unix://C:\csi\csi.sock", r"C:\csi\csi.sock"),
        ] {
            let parsed = Address::parse(address).unwrap();
            assert_eq!(parsed.to_string(), shown, "{address}");
            assert_eq!(parsed.target, Target::Unix(path.into()), "{address}");
        }
    }

    #[test]
    fn does_not_take_a_relative_path_for_an_absolute_one() {
        for address in ["unix://csi.sock", "unix://C:csi.sock", r"unix://1:\csi.sock"] {
            assert!(Address::parse(address).is_err(), "{address}");
        }
        let host = Address::parse("c:443").unwrap();
        assert_eq!(host.target, Target::Tcp("c:443".into()));
    }
}
