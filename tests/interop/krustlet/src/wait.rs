use std::fmt::Display;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

/// Less than the 30 s after which the registrar offers its socket again: Krustlet's one attempt
/// has to do.
const PATIENCE: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(5);

/// Polls until the fact holds. An error ends the wait at once.
pub(crate) fn eventually(
    fact: impl Display,
    mut holds: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !holds().with_context(|| format!("waiting for: {fact}"))? {
        ensure!(Instant::now() < deadline, "not within {PATIENCE:?}: {fact}");
        thread::sleep(POLL);
    }
    Ok(())
}
