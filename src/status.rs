//! How far the registration has come: the one piece of state that more than one place reads.
//!
//! `driver`, `socket` and `registration` write what they see happen; the health service and the
//! HTTP server read. It is published through a watch, so that a change can be waited for.

use std::mem;
use std::time::SystemTime;

use tokio::sync::watch;
use tokio::time::Instant;

/// Where reports go, and where the present state is read.
pub(crate) type Publisher = watch::Sender<Status>;

/// The whole state, as of now.
#[derive(Debug, Default)]
pub(crate) struct Status {
    /// Where the driver is looked for.
    pub(crate) csi_address: String,
    /// Once the driver's name is known.
    pub(crate) registration: Option<Registration>,
    pub(crate) place: Place,
    pub(crate) kubelet: Kubelet,
    pub(crate) counts: Counts,
    /// When the kubelet last confirmed a registration, on whichever socket.
    pub(crate) last_registration: Option<SystemTime>,
    /// When the present socket was bound.
    offered: Option<Instant>,
}

/// What is registered.
#[derive(Debug, Clone)]
pub(crate) struct Registration {
    pub(crate) driver_name: String,
    /// Of the registration socket.
    pub(crate) path: String,
}

/// What stands at the path of the registration socket.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing, or nothing yet.
    #[default]
    Empty,
    Ours,
    /// The socket of another process.
    Foreign,
    /// No socket, but this kind of file, a noun with its article.
    Taken(&'static str),
}

/// What the kubelet has said about the present socket.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) enum Kubelet {
    #[default]
    Silent,
    /// GetInfo, but no status yet.
    Called,
    Confirmed,
    /// With the kubelet's reason.
    Refused(String),
}

/// Since the process started. The program's own calls do not count as the kubelet's.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    /// Attempts to learn the driver's name, by how they ended.
    pub(crate) driver_ok: u64,
    pub(crate) driver_unreachable: u64,
    pub(crate) driver_error: u64,
    /// Also the number of the present bind, by which late words about a former one are told.
    pub(crate) socket_binds: u64,
    /// The kubelet's calls.
    pub(crate) get_info: u64,
    pub(crate) registered: u64,
    pub(crate) refused: u64,
}

impl Status {
    /// The driver has told its name, and the registration socket will be at the path.
    pub(crate) fn named(&mut self, driver_name: &str, path: &str) {
        self.registration =
            Some(Registration { driver_name: driver_name.into(), path: path.into() });
    }

    /// The socket was bound: for the kubelet it is a new one.
    pub(crate) fn bound(&mut self) {
        self.place = Place::Ours;
        self.kubelet = Kubelet::Silent;
        self.counts.socket_binds += 1;
        self.offered = Some(Instant::now());
    }

    /// What stands at the path of the socket. Tells whether that is news.
    pub(crate) fn stands(&mut self, place: Place) -> bool {
        mem::replace(&mut self.place, place) != place
    }

    /// Since when the present socket waits for the kubelet's first call.
    pub(crate) fn unheard_since(&self) -> Option<Instant> {
        let waits = self.place == Place::Ours && self.kubelet == Kubelet::Silent;
        self.offered.filter(|_| waits)
    }

    /// The kubelet has called GetInfo on the socket of this bind.
    pub(crate) fn called(&mut self, bind: u64) {
        self.counts.get_info += 1;
        if self.kubelet == Kubelet::Silent && bind == self.counts.socket_binds {
            self.kubelet = Kubelet::Called;
        }
    }

    /// The kubelet has told on the socket of this bind what became of the registration.
    pub(crate) fn notified(&mut self, bind: u64, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => {
                if bind == self.counts.socket_binds {
                    self.kubelet = Kubelet::Confirmed;
                }
                self.counts.registered += 1;
                self.last_registration = Some(SystemTime::now());
            }
            Err(reason) => {
                self.kubelet = Kubelet::Refused(reason);
                self.counts.refused += 1;
            }
        }
    }

    /// Why the driver is not registered, in one line.
    ///
    /// # Errors
    /// The reason is the error.
    pub(crate) fn ready(&self) -> Result<(), String> {
        let Some(Registration { path, .. }) = &self.registration else {
            return Err(format!("waiting for the CSI driver at {}", self.csi_address));
        };
        match (self.place, &self.kubelet) {
            (Place::Ours, Kubelet::Confirmed) => Ok(()),
            (Place::Ours, Kubelet::Silent) => Err("the kubelet has not called yet".into()),
            (Place::Ours, Kubelet::Called) => Err("the kubelet has called, no status yet".into()),
            (Place::Ours, Kubelet::Refused(reason)) => Err(format!(
                "the kubelet has refused the registration: {}",
                reason.replace(['\r', '\n'], " ")
            )),
            (Place::Empty, _) => Err("the registration socket is gone".into()),
            (Place::Foreign, _) => Err(format!("another process's socket stands at {path}")),
            (Place::Taken(kind), _) => Err(format!("{path} is {kind}, not a socket")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Kubelet, Place, Status};

    fn bound() -> Status {
        let mut status = Status::default();
        status.named("name", "/reg/name-reg.sock");
        status.bound();
        status
    }

    #[test]
    fn is_ready_once_the_kubelet_has_confirmed_the_present_socket() {
        let mut status = bound();
        assert!(status.ready().is_err());
        status.called(1);
        assert!(status.ready().is_err());
        status.notified(1, Ok(()));
        assert_eq!(status.ready(), Ok(()));
        status.called(1);
        assert_eq!(status.ready(), Ok(()), "the kubelet may ask again");
        status.bound();
        status.called(1);
        status.notified(1, Ok(()));
        let silent = Err("the kubelet has not called yet".into());
        assert_eq!(status.ready(), silent, "that was about the former socket");
        status.notified(2, Ok(()));
        assert_eq!(status.ready(), Ok(()));
        let counts = (status.counts.get_info, status.counts.registered);
        assert_eq!(counts, (3, 3));
    }

    #[test]
    fn says_in_one_line_why_it_is_not() {
        let waiting = Status { csi_address: "/csi/csi.sock".into(), ..Status::default() };
        assert_eq!(waiting.ready(), Err("waiting for the CSI driver at /csi/csi.sock".into()));
        let confirmed = Kubelet::Confirmed;
        let refused = Kubelet::Refused("two\nlines".into());
        for (place, kubelet, reason) in [
            (Place::Ours, Kubelet::Silent, "the kubelet has not called yet"),
            (Place::Ours, Kubelet::Called, "the kubelet has called, no status yet"),
            (Place::Ours, refused, "the kubelet has refused the registration: two lines"),
            (Place::Empty, confirmed.clone(), "the registration socket is gone"),
            (
                Place::Foreign,
                confirmed.clone(),
                "another process's socket stands at /reg/name-reg.sock",
            ),
            (
                Place::Taken("a regular file"),
                confirmed,
                "/reg/name-reg.sock is a regular file, not a socket",
            ),
        ] {
            let mut status = bound();
            status.place = place;
            status.kubelet = kubelet;
            assert_eq!(status.ready(), Err(reason.into()));
        }
    }
}
