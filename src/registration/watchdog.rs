//! Waits for what the kubelet makes of the registration socket, or for its silence.

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::status::{Kubelet, Publisher, Status};

/// How many seconds the kubelet may keep silent about a new socket: the first time, the second, ...
const PATIENCE: [u64; 4] = [30, 60, 120, 300];

/// What the kubelet's silence or words lead to.
pub(super) enum Event {
    /// It has refused the driver, with this reason.
    Refused(String),
    /// It has not called for so long.
    Unheard(Duration),
}

/// Follows the status from one event to the next.
pub(super) struct Watchdog {
    changes: watch::Receiver<Status>,
    /// How often the socket was offered again in vain.
    unheard: usize,
    /// When it was last told of.
    told: Instant,
}

impl Watchdog {
    pub(super) fn of(status: &Publisher) -> Self {
        Self { changes: status.subscribe(), unheard: 0, told: Instant::now() }
    }

    /// The next event. What is dropped before that goes on at the next call.
    pub(super) async fn next(&mut self) -> Event {
        loop {
            let since = {
                let status = self.changes.borrow_and_update();
                if let Kubelet::Refused(reason) = &status.kubelet {
                    return Event::Refused(reason.clone());
                }
                if status.kubelet != Kubelet::Silent {
                    self.unheard = 0;
                }
                status.unheard_since()
            };
            let patience = Duration::from_secs(PATIENCE[self.unheard.min(PATIENCE.len() - 1)]);
            // What could not be offered again has waited since it was told of.
            let end = since.map(|since| since.max(self.told) + patience);
            let over = async {
                match end {
                    Some(end) => sleep_until(end).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                _ = self.changes.changed() => {}
                () = over => {
                    self.unheard += 1;
                    self.told = Instant::now();
                    return Event::Unheard(patience);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds after which a silent kubelet is told of, five times.
    async fn pauses(status: &Publisher, offered_again: impl Fn()) -> Vec<u64> {
        let mut watchdog = Watchdog::of(status);
        let mut pauses = Vec::new();
        for _ in 0..5 {
            let since = Instant::now();
            assert!(matches!(watchdog.next().await, Event::Unheard(_)));
            pauses.push(since.elapsed().as_secs());
            offered_again();
        }
        pauses
    }

    #[tokio::test(start_paused = true)]
    async fn waits_longer_each_time_whether_or_not_the_socket_could_be_offered_again() {
        let status = Publisher::default();
        status.send_modify(Status::bound);
        let again = || status.send_modify(Status::bound);
        assert_eq!(pauses(&status, again).await, [30, 60, 120, 300, 300]);
        assert_eq!(pauses(&status, || {}).await, [30, 60, 120, 300, 300]);
    }
}
