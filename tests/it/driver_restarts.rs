use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::harness::{Answer, DRIVER, Driver, Kubelet, World, eventually, get};

const OTHER: &str = "other.csi.example.com";
const RENAMED: &str = r#"W "The CSI driver has come back under another name""#;

#[test]
fn change_nothing_under_the_same_name() {
    let world = World::new();
    let mut driver = world.driver();
    let (mut registrar, port) = world.start_with_http(&[]);
    world.kubelet().register();
    let before = fs::metadata(world.socket()).unwrap().ino();
    let log = registrar.log();
    for answers in 2..4 {
        drop(driver);
        driver = world.driver();
        // not merely called: a driver that ends amid its answer is asked again, with a warning
        let answered = format!(r#"driver_attempts_total{{result="ok"}} {answers}"#);
        eventually("an answer", || get(port, "/metrics").text().contains(&answered).then_some(()));
    }
    assert_eq!(world.kubelet().register().name, DRIVER);
    assert_eq!(fs::metadata(world.socket()).unwrap().ino(), before);
    assert!(registrar.is_running());
    // the one line of the registration just now
    assert_eq!(registrar.log().len(), log.len() + 1);
}

#[test]
fn under_another_name_are_registered_under_it() {
    let world = World::new();
    let driver = world.driver();
    let mut registrar = world.start(&[]);
    world.kubelet().register();
    drop(driver);
    let driver = world.driver_that(&[Answer::Name(OTHER)]);
    registrar.logs(&format!(r#"{RENAMED} was="{DRIVER}" is="{OTHER}""#));
    let socket = world.registry().join(format!("{OTHER}-reg.sock"));
    assert_eq!(Kubelet::dial(&socket).register().name, OTHER);
    assert_eq!(world.listing(), [format!("{OTHER}-reg.sock")]);
    // it heals there as well, and the driver may return to its first name
    fs::remove_file(&socket).unwrap();
    assert_eq!(Kubelet::dial(&socket).register().name, OTHER);
    drop(driver);
    let _driver = world.driver();
    assert_eq!(world.kubelet().register().name, DRIVER);
    assert_eq!(world.listing(), [format!("{DRIVER}-reg.sock")]);
    let log = registrar.log();
    let told = log.iter().filter(|line| line.starts_with(RENAMED)).count();
    assert_eq!(told, 2);
    registrar.signal(Signal::SIGTERM);
    assert_eq!(registrar.exit_code(), 0);
    assert_eq!(world.listing(), [""; 0]);
}

#[test]
fn are_noticed_in_a_directory_that_is_made_anew() {
    let world = World::new();
    let directory = world.path("csi");
    fs::create_dir(&directory).unwrap();
    let socket = directory.join("csi.sock");
    let flag = format!("--csi-address={}", socket.display());
    let mut driver = Driver::start(&socket, &[Answer::Name(DRIVER)]);
    let registrar = world.start(&[&flag]);
    world.kubelet().register();
    let moved = || fs::rename(&directory, world.path("aside")).unwrap();
    let removed = || fs::remove_dir(&directory).unwrap();
    for (was, is, goes) in [(DRIVER, OTHER, &removed as &dyn Fn()), (OTHER, DRIVER, &moved)] {
        drop(driver);
        goes();
        fs::create_dir(&directory).unwrap();
        driver = Driver::start(&socket, &[Answer::Name(is)]);
        registrar.logs(&format!(r#"{RENAMED} was="{was}" is="{is}""#));
    }
}

#[test]
fn are_noticed_behind_a_symbolic_link() {
    let world = World::new();
    let link = world.path("link.sock");
    symlink(world.driver_socket(), &link).unwrap();
    let driver = world.driver();
    let registrar = world.start(&[&format!("--csi-address={}", link.display())]);
    world.kubelet().register();
    drop(driver);
    let _driver = world.driver_that(&[Answer::Name(OTHER)]);
    registrar.logs(&format!(r#"{RENAMED} was="{DRIVER}" is="{OTHER}""#));
}

#[test]
fn are_noticed_while_the_former_driver_still_answers() {
    let world = World::new();
    let former = world.driver_that(&[Answer::Late(DRIVER, Duration::from_millis(500))]);
    let registrar = world.start(&["--timeout=5s"]);
    eventually("a call", || former.calls().pop());
    let _driver = world.driver_that(&[Answer::Name(OTHER)]);
    registrar.logs(&format!(r#"{RENAMED} was="{DRIVER}" is="{OTHER}""#));
}

#[test]
fn under_a_name_that_cannot_be_registered_leave_the_former_one() {
    let world = World::new();
    let driver = world.driver();
    let mut registrar = world.start(&[]);
    world.kubelet().register();
    drop(driver);
    let driver = world.driver_that(&[Answer::Name("a/b")]);
    registrar.logs(r#"W "The CSI driver has come back, but not with a name""#);
    assert_eq!(world.kubelet().register().name, DRIVER);
    drop(driver);
    let _driver = world.driver_that(&[Answer::Name(OTHER)]);
    registrar.logs(RENAMED);
    assert!(registrar.is_running());
}
