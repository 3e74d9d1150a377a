use anyhow::{Context as _, ensure};
use nix::sys::signal::Signal;

use crate::wait::eventually;
use crate::world::World;

type Scenario = fn(&World<'_>) -> anyhow::Result<()>;

pub(crate) const SCENARIOS: [(&str, Scenario); 10] = [
    ("registers with a Krustlet that runs", krustlet_first),
    ("registers with a Krustlet that starts later", registrar_first),
    ("registers over the socket of a killed instance", over_a_stale_socket),
    ("registers over a socket that Krustlet has found dead", over_a_socket_found_dead),
    ("registers again when its socket is deleted, 5 times", deleted_socket),
    ("is forgotten on SIGTERM", sigterm),
    ("registers at each of 20 starts, by one attempt", twenty_starts),
    ("registers with a restarted Krustlet, without a restart", restarted_krustlet),
    ("the exec probe passes only after the registration", exec_probe),
    ("registers 5 drivers at once", five_drivers),
];

const NAME: &str = "interop.csi.example.com";

fn krustlet_first(world: &World<'_>) -> anyhow::Result<()> {
    let krustlet = world.krustlet()?;
    let driver = world.driver(NAME)?;
    world.registrar(&driver)?.is_registered(&krustlet, 1)
}

fn registrar_first(world: &World<'_>) -> anyhow::Result<()> {
    let driver = world.driver(NAME)?;
    let mut registrar = world.registrar(&driver)?;
    registrar.has_a_socket()?;
    registrar.is_registered(&world.krustlet()?, 1)
}

fn over_a_stale_socket(world: &World<'_>) -> anyhow::Result<()> {
    let krustlet = world.krustlet()?;
    let driver = world.driver(NAME)?;
    let mut killed = world.registrar(&driver)?;
    killed.is_registered(&krustlet, 1)?;
    killed.end(Signal::SIGKILL)?;
    ensure!(killed.socket_exists(), "there is no stale socket");
    world.registrar(&driver)?.is_registered(&krustlet, 1)
}

fn over_a_socket_found_dead(world: &World<'_>) -> anyhow::Result<()> {
    let driver = world.driver(NAME)?;
    let mut killed = world.registrar(&driver)?;
    killed.has_a_socket()?;
    killed.end(Signal::SIGKILL)?;
    let krustlet = world.krustlet()?;
    ensure!(killed.socket_exists(), "there is no stale socket");
    ensure!(krustlet.does_not_know(&driver), "Krustlet knows a driver that nobody offers");
    world.registrar(&driver)?.is_registered(&krustlet, 1)
}

fn deleted_socket(world: &World<'_>) -> anyhow::Result<()> {
    let krustlet = world.krustlet()?;
    let driver = world.driver(NAME)?;
    let mut registrar = world.registrar(&driver)?;
    registrar.is_registered(&krustlet, 1)?;
    for deletion in 1..=5 {
        registrar.delete_socket()?;
        registrar.is_registered(&krustlet, 1 + deletion)?;
    }
    Ok(())
}

fn sigterm(world: &World<'_>) -> anyhow::Result<()> {
    let krustlet = world.krustlet()?;
    let driver = world.driver(NAME)?;
    let mut registrar = world.registrar(&driver)?;
    registrar.is_registered(&krustlet, 1)?;
    let status = registrar.end(Signal::SIGTERM)?;
    ensure!(status.success(), "at SIGTERM: {status}");
    ensure!(!registrar.socket_exists(), "the socket is left behind");
    eventually("Krustlet has forgotten the driver", || Ok(krustlet.does_not_know(&driver)))
}

fn twenty_starts(world: &World<'_>) -> anyhow::Result<()> {
    let krustlet = world.krustlet()?;
    let driver = world.driver(NAME)?;
    for start in 1..=20 {
        let mut registrar = world.registrar(&driver)?;
        registrar.is_registered(&krustlet, 1).with_context(|| format!("start {start}"))?;
        registrar.end(Signal::SIGTERM)?;
        eventually("Krustlet has forgotten the driver", || Ok(krustlet.does_not_know(&driver)))?;
    }
    Ok(())
}

fn restarted_krustlet(world: &World<'_>) -> anyhow::Result<()> {
    let krustlet = world.krustlet()?;
    let driver = world.driver(NAME)?;
    let mut registrar = world.registrar(&driver)?;
    registrar.is_registered(&krustlet, 1)?;
    krustlet.stop()?;
    registrar.is_registered(&world.krustlet()?, 2)
}

fn exec_probe(world: &World<'_>) -> anyhow::Result<()> {
    let driver = world.driver(NAME)?;
    let mut registrar = world.registrar(&driver)?;
    registrar.has_a_socket()?;
    ensure!(world.probe(&driver).is_err(), "the probe passes though no Krustlet runs");
    let krustlet = world.krustlet()?;
    registrar.is_registered(&krustlet, 1)?;
    world.probe(&driver)
}

fn five_drivers(world: &World<'_>) -> anyhow::Result<()> {
    let krustlet = world.krustlet()?;
    let drivers = (1..=5)
        .map(|number| world.driver(&format!("interop-{number}.csi.example.com")))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let registrars =
        drivers.iter().map(|driver| world.registrar(driver)).collect::<anyhow::Result<Vec<_>>>()?;
    for mut registrar in registrars {
        registrar.is_registered(&krustlet, 1)?;
    }
    ensure!(drivers.iter().all(|driver| krustlet.knows(driver)), "Krustlet has forgotten a driver");
    Ok(())
}
