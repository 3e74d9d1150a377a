use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::harness::{DRIVER, World};

#[test]
fn is_the_owners_alone_whatever_the_umask_which_stays() {
    for umask in ["0000", "0022", "0077", "0277", "0777"] {
        let world = World::new();
        let _driver = world.driver();
        let script = format!(r#"umask {umask}; exec "$0" "$@""#);
        let registrar = world.start_under(&["sh", "-c", &script], &[]);
        world.kubelet().get_info().unwrap();
        let mode = fs::metadata(world.socket()).unwrap().permissions().mode();
        assert_eq!(format!("{mode:o}"), "140700", "umask {umask}");
        assert_eq!(registrar.status("Umask"), umask);
    }
}

#[test]
fn has_a_path_of_107_bytes_at_most() {
    for length in [107, 108] {
        let world = World::new();
        let _driver = world.driver();
        let padding = length - world.socket().as_os_str().len() - 1;
        let registry = world.registry().join("p".repeat(padding));
        fs::create_dir(&registry).unwrap();
        let path = registry.join(format!("{DRIVER}-reg.sock"));
        let shown = path.display();
        let mut registrar =
            world.start(&["--plugin-registration-path", registry.to_str().unwrap()]);
        if length == 107 {
            registrar.logs(&format!(r#"I "Registration Server started" socketPath="{shown}""#));
            assert!(path.exists());
        } else {
            assert_eq!(registrar.exit_code(), 1);
            let reason = format!(
                "driver name {DRIVER} makes a socket path of 108 bytes, {shown}, and 107 is the limit"
            );
            let line = format!(r#"E "The CSI driver's name cannot be registered" err="{reason}""#);
            assert_eq!(registrar.log().pop(), Some(line));
            assert!(!path.exists());
        }
    }
}

#[test]
fn replaces_a_socket_that_stands_in_its_place() {
    let world = World::new();
    let _driver = world.driver();
    let elsewhere = world.path("elsewhere");
    let listener = UnixListener::bind(&elsewhere).unwrap();
    type Put<'a> = &'a dyn Fn(&Path);
    let dead: Put = &|path| drop(UnixListener::bind(path).unwrap());
    let link: Put = &|path| symlink(&elsewhere, path).unwrap();
    for put in [dead, link] {
        put(&world.socket());
        let mut registrar = world.start(&[]);
        registrar.logs(r#"I "Registration Server started""#);
        assert_eq!(world.kubelet().get_info().unwrap().name, DRIVER);
        assert!(fs::symlink_metadata(&elsewhere).is_ok());
        registrar.signal(Signal::SIGTERM);
        assert_eq!(registrar.exit_code(), 0);
        assert_eq!(world.listing(), [""; 0]);
    }
    drop(listener);
}

#[test]
fn is_not_made_where_a_file_of_another_type_stands_which_is_left_alone() {
    type Put = fn(&Path);
    for (put, kind) in [
        ((|path| fs::write(path, "mine").unwrap()) as Put, "a regular file"),
        (|path| fs::create_dir(path).unwrap(), "a directory"),
        (|path| mkfifo(path, Mode::S_IRWXU).unwrap(), "a fifo"),
        (|path| symlink("/etc/passwd", path).unwrap(), "a regular file"),
    ] {
        let world = World::new();
        let _driver = world.driver();
        put(&world.socket());
        let before = fs::symlink_metadata(world.socket()).unwrap().ino();
        let mut registrar = world.start(&[]);
        assert_eq!(registrar.exit_code(), 1);
        let path = world.socket();
        let reason = format!(
            "file exists in socketPath {} but it's not a socket, it is {kind}",
            path.display()
        );
        let last = registrar.log().pop().unwrap();
        assert!(last.ends_with(&format!(r#"" err="{reason}""#)), "{last}");
        assert_eq!(fs::symlink_metadata(path).unwrap().ino(), before);
    }
}

#[test]
fn is_not_made_through_a_dangling_link_nor_in_a_missing_directory() {
    type Put = fn(&World);
    for (put, reason) in [
        ((|world| symlink("/nowhere", world.socket()).unwrap()) as Put, "address already in use"),
        (|world| fs::remove_dir(world.registry()).unwrap(), "no such file or directory"),
    ] {
        let world = World::new();
        let _driver = world.driver();
        put(&world);
        let before = world.listing();
        let mut registrar = world.start(&[]);
        assert_eq!(registrar.exit_code(), 1);
        let path = world.socket();
        let path = path.display();
        let line = format!(
            r#"E "Failed to listen on socket" err="listen unix {path}: bind: {reason}" socketPath="{path}""#
        );
        assert_eq!(registrar.log().pop(), Some(line));
        assert_eq!(world.listing(), before);
    }
}

#[test]
fn of_a_second_instance_is_not_removed_by_the_first() {
    let world = World::new();
    let _driver = world.driver();
    let mut first = world.start(&[]);
    first.logs(r#"I "Registration Server started""#);
    let mut second = world.start(&[]);
    second.logs(r#"I "Registration Server started""#);
    first.signal(Signal::SIGTERM);
    assert_eq!(first.exit_code(), 0);
    assert_eq!(world.kubelet().get_info().unwrap().name, DRIVER);
    second.signal(Signal::SIGTERM);
    assert_eq!(second.exit_code(), 0);
    assert_eq!(world.listing(), [""; 0]);
}

#[test]
fn may_be_gone_when_the_process_ends_or_be_another_file() {
    type Put = fn(&Path);
    for (put, left) in [
        ((|_| {}) as Put, false),
        (|path| fs::write(path, "mine").unwrap(), true),
        (|path| fs::create_dir(path).unwrap(), true),
        (|path| fs::remove_dir(path.parent().unwrap()).unwrap(), false),
    ] {
        let world = World::new();
        let _driver = world.driver();
        let mut registrar = world.start(&[]);
        world.kubelet().get_info().unwrap();
        fs::remove_file(world.socket()).unwrap();
        put(&world.socket());
        registrar.signal(Signal::SIGTERM);
        assert_eq!(registrar.exit_code(), 0);
        assert_eq!(world.socket().exists(), left);
    }
}

#[test]
fn is_made_without_any_capability() {
    let world = World::new();
    let _driver = world.driver();
    let wrapper = ["setpriv", "--bounding-set=-all", "--no-new-privs"];
    let root = fs::metadata(world.registry()).unwrap().uid() == 0;
    let wrapper = if root { &wrapper[..] } else { &[] };
    let registrar = world.start_under(wrapper, &[]);
    assert_eq!(world.kubelet().register().name, DRIVER);
    assert_eq!(registrar.status("CapEff"), "0000000000000000");
    fs::remove_file(world.socket()).unwrap();
    assert_eq!(world.kubelet().register().name, DRIVER);
}
