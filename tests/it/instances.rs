use std::collections::BTreeSet;
use std::thread;

use nix::sys::signal::Signal;

use crate::harness::{DRIVER, Registrar, World, eventually};

const FOREIGN: &str = r#"W "Another process's socket stands in place of the registration socket, waiting for it to go""#;

const STARTED: [&str; 2] =
    [r#"I "Registration Server started""#, r#"W "Listening on a new registration socket""#];

/// Instances of one driver, told apart by the endpoint that they name.
fn start(world: &World, endpoint: &str) -> Registrar {
    world.start(&[&format!("--kubelet-registration-path={endpoint}")])
}

/// Waits until one of these instances serves, and all of the others know.
fn settle(world: &World, running: &[&Registrar], endpoints: &[&str]) {
    let serves = |registrar: &&&Registrar| {
        let log = registrar.log();
        let mut changes = log.iter().filter_map(|line| {
            let serves = STARTED.iter().any(|start| line.starts_with(start));
            (serves || line.starts_with(FOREIGN)).then_some(serves)
        });
        changes.next_back().unwrap_or(false)
    };
    if running.is_empty() {
        return eventually("an empty directory", || world.listing().is_empty().then_some(()));
    }
    eventually("one that serves", || (running.iter().filter(serves).count() == 1).then_some(()));
    eventually("one socket", || (world.listing() == [format!("{DRIVER}-reg.sock")]).then_some(()));
    let serving = world.kubelet().register().endpoint;
    assert!(endpoints.contains(&&*serving), "{serving} is not of {endpoints:?}");
}

const NAMES: [&str; 3] = ["/a", "/b", "/c"];
/// The orders in which three can go.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

fn stop_in_order(world: &World, mut instances: Vec<Registrar>, order: [usize; 3]) {
    let mut running: BTreeSet<_> = (0..3).collect();
    for index in order {
        running.remove(&index);
        instances[index].signal(Signal::SIGTERM);
        assert_eq!(instances[index].exit_code(), 0, "{index} of {order:?}");
        let rest: Vec<_> = running.iter().map(|index| &instances[*index]).collect();
        let names: Vec<_> = running.iter().map(|index| NAMES[*index]).collect();
        settle(world, &rest, &names);
    }
}

#[test]
fn started_one_after_another_may_stop_in_any_order() {
    for order in ORDERS {
        let world = World::new();
        let _driver = world.driver();
        let mut instances: Vec<Registrar> = Vec::new();
        for name in NAMES {
            let next = start(&world, name);
            next.logs(STARTED[0]);
            instances.push(next);
            let running: Vec<_> = instances.iter().collect();
            settle(&world, &running, &[name]);
        }
        stop_in_order(&world, instances, order);
    }
}

#[test]
fn started_at_once_may_stop_in_any_order() {
    for order in ORDERS {
        let world = World::new();
        let _driver = world.driver();
        let instances = NAMES.map(|name| start(&world, name));
        for instance in &instances {
            instance.logs(STARTED[0]);
        }
        settle(&world, &instances.iter().collect::<Vec<_>>(), &NAMES);
        stop_in_order(&world, instances.into(), order);
    }
}

#[test]
fn may_stop_at_once() {
    for _ in 0..5 {
        let world = World::new();
        let _driver = world.driver();
        let mut instances = NAMES.map(|name| start(&world, name));
        for instance in &instances {
            instance.logs(STARTED[0]);
        }
        for instance in &instances {
            instance.signal(Signal::SIGTERM);
        }
        for instance in &mut instances {
            assert_eq!(instance.exit_code(), 0);
        }
        assert_eq!(world.listing(), [""; 0]);
    }
}

/// An update stops the former pod while the next one starts.
#[test]
fn may_start_while_others_stop() {
    let world = World::new();
    let _driver = world.driver();
    let mut former = start(&world, "/0");
    former.logs(STARTED[0]);
    for number in 1..30 {
        let next = start(&world, &format!("/{number}"));
        // spread over the time that the next one needs
        for _ in 0..number * 20 {
            thread::yield_now();
        }
        former.signal(Signal::SIGTERM);
        assert_eq!(former.exit_code(), 0);
        next.logs(STARTED[0]);
        former = next;
        assert_eq!(world.kubelet().register().endpoint, format!("/{number}"));
    }
    former.signal(Signal::SIGTERM);
    assert_eq!(former.exit_code(), 0);
    assert_eq!(world.listing(), [""; 0]);
}
