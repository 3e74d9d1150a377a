use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::harness::{DRIVER, Http, Kubelet, Registrar, World, eventually};

const NEW: &str = r#"W "Listening on a new registration socket""#;
const FOREIGN: &str = r#"W "Another process's socket stands in place of the registration socket, waiting for it to go""#;
const TAKEN: &str =
    r#"W "A file stands in place of the registration socket, waiting for it to go""#;
const BACK: &str = r#"I "The registration socket is back""#;
const GONE: &str = "the registration socket is gone";
/// Within this time a lost socket is bound again.
const SOON: Duration = Duration::from_secs(2);

/// A registrar that the kubelet has registered, and what it says over HTTP.
fn registered(world: &World) -> (Registrar, Http) {
    let http = Http::at_a_free_port();
    let registrar = world.start(&[&http.flag()]);
    world.kubelet().register();
    (registrar, http)
}

fn inode(path: &Path) -> u64 {
    fs::symlink_metadata(path).map_or(0, |file| file.ino())
}

fn count(registrar: &Registrar, start: &str) -> usize {
    let log = registrar.log();
    log.iter().filter(|line| line.starts_with(start)).count()
}

/// Waits until there have been so many binds, the last of them in time, and its socket is whole.
fn is_bound_again(world: &World, http: &Http, binds: u32) {
    let since = Instant::now();
    let line = format!("csi_node_driver_registrar_socket_binds_total {binds}\n");
    eventually(&line, || http.get("/metrics").1.contains(&line).then_some(()));
    assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
    let file = fs::symlink_metadata(world.socket()).unwrap();
    assert_eq!(format!("{:o}", file.mode()), "140700");
    assert_eq!(world.listing(), [format!("{DRIVER}-reg.sock")]);
    assert_eq!(http.ready(), "503 the kubelet has not called yet");
    assert_eq!(world.kubelet().register().name, DRIVER);
    assert_eq!(http.ready(), "200 ok");
}

/// Whatever has happened before, the next loss is noticed as well.
fn heals_still(world: &World, http: &Http, binds: u32) {
    fs::remove_file(world.socket()).unwrap();
    is_bound_again(world, http, binds);
}

#[test]
fn binds_a_deleted_socket_again_each_of_50_times() {
    let world = World::new();
    let _driver = world.driver();
    let (mut registrar, http) = registered(&world);
    for deletion in 1..=50 {
        let before = inode(&world.socket());
        fs::remove_file(world.socket()).unwrap();
        is_bound_again(&world, &http, 1 + deletion);
        assert_ne!(inode(&world.socket()), before);
        assert_eq!(count(&registrar, NEW), deletion as usize);
    }
    // beside the lines of the kubelet's calls
    let log = registrar.log();
    let told = |line: &&String| line.starts_with('W') || line.starts_with('E');
    assert_eq!(log.iter().filter(told).count(), 50);
    registrar.signal(Signal::SIGTERM);
    assert_eq!(registrar.exit_code(), 0);
    assert_eq!(world.listing(), [""; 0]);
}

#[test]
fn survives_deletions_that_do_not_wait() {
    let world = World::new();
    let _driver = world.driver();
    let (mut registrar, http) = registered(&world);
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end {
        let _ = fs::remove_file(world.socket());
        thread::yield_now();
    }
    eventually("a socket that stays", || {
        let ready = http.ready();
        (ready == "503 the kubelet has not called yet" && world.socket().exists()).then_some(())
    });
    assert_eq!(world.kubelet().register().name, DRIVER);
    assert_eq!(http.ready(), "200 ok");
    assert!(registrar.is_running());
}

#[test]
fn leaves_anothers_socket_alone_and_takes_the_path_back_when_it_goes() {
    let world = World::new();
    let _driver = world.driver();
    let (mut registrar, http) = registered(&world);
    fs::remove_file(world.socket()).unwrap();
    let other = UnixListener::bind(world.socket()).unwrap();
    let theirs = inode(&world.socket());
    registrar.logs(FOREIGN);
    let path = world.socket();
    let reason = format!("503 another process's socket stands at {}", path.display());
    assert_eq!(http.ready(), reason);
    // neither a request to offer ours again nor the other's death makes it ours
    registrar.signal(Signal::SIGHUP);
    registrar.logs(r#"I "SIGHUP"#);
    drop(other);
    assert_eq!(http.ready(), reason);
    assert_eq!(inode(&world.socket()), theirs);
    fs::remove_file(world.socket()).unwrap();
    is_bound_again(&world, &http, 2);
    assert_eq!(count(&registrar, FOREIGN), 1);
    assert_eq!(count(&registrar, NEW), 1);
    heals_still(&world, &http, 3);

    fs::remove_file(world.socket()).unwrap();
    let _other = UnixListener::bind(world.socket()).unwrap();
    let theirs = inode(&world.socket());
    registrar.signal(Signal::SIGTERM);
    assert_eq!(registrar.exit_code(), 0);
    assert_eq!(inode(&world.socket()), theirs);
}

#[test]
fn leaves_a_file_of_another_type_alone_and_takes_the_path_back_when_it_goes() {
    type Put = fn(&Path);
    for (put, remove, kind) in [
        (
            (|path| fs::write(path, "mine").unwrap()) as Put,
            (|path| fs::remove_file(path).unwrap()) as Put,
            "a regular file",
        ),
        (|path| fs::create_dir(path).unwrap(), |path| fs::remove_dir(path).unwrap(), "a directory"),
        (
            |path| mkfifo(path, Mode::S_IRWXU).unwrap(),
            |path| fs::remove_file(path).unwrap(),
            "a fifo",
        ),
        (
            |path| symlink("/nowhere", path).unwrap(),
            |path| fs::remove_file(path).unwrap(),
            "a symbolic link",
        ),
    ] {
        let world = World::new();
        let _driver = world.driver();
        let (mut registrar, http) = registered(&world);
        fs::remove_file(world.socket()).unwrap();
        put(&world.socket());
        let path = world.socket();
        let path = path.display();
        registrar.logs(&format!(r#"{TAKEN} socketPath="{path}" file="{kind}""#));
        assert_eq!(http.ready(), format!("503 {path} is {kind}, not a socket"));
        remove(&world.socket());
        is_bound_again(&world, &http, 2);
        assert_eq!(count(&registrar, TAKEN), 1);

        fs::remove_file(world.socket()).unwrap();
        put(&world.socket());
        let theirs = inode(&world.socket());
        registrar.signal(Signal::SIGTERM);
        assert_eq!(registrar.exit_code(), 0);
        assert_eq!(inode(&world.socket()), theirs);
    }
}

#[test]
fn takes_back_a_socket_that_was_moved_and_not_what_became_of_it() {
    let world = World::new();
    let _driver = world.driver();
    let (registrar, http) = registered(&world);
    let (aside, ours) = (world.path("aside"), inode(&world.socket()));
    fs::rename(world.socket(), &aside).unwrap();
    is_bound_again(&world, &http, 2);
    // the former socket, which nobody listens at any more
    fs::rename(&aside, world.socket()).unwrap();
    registrar.logs(FOREIGN);
    assert_eq!(inode(&world.socket()), ours);
    fs::remove_file(world.socket()).unwrap();
    is_bound_again(&world, &http, 3);

    let ours = inode(&world.socket());
    fs::rename(world.registry(), &aside).unwrap();
    eventually("readyz", || http.ready().contains(GONE).then_some(()));
    fs::rename(&aside, world.registry()).unwrap();
    registrar.logs(BACK);
    assert_eq!(inode(&world.socket()), ours);
    assert_eq!(world.kubelet().register().name, DRIVER);
    assert_eq!(http.ready(), "200 ok");
    heals_still(&world, &http, 4);
}

#[test]
fn binds_again_in_a_registry_directory_made_anew() {
    type Take = fn(&World);
    for take in [(|world| fs::remove_dir_all(world.registry()).unwrap()) as Take, |world| {
        fs::rename(world.registry(), world.path("former")).unwrap()
    }] {
        let world = World::new();
        let _driver = world.driver();
        let (mut registrar, http) = registered(&world);
        take(&world);
        eventually("readyz", || http.ready().contains(GONE).then_some(()));
        assert_eq!(http.get("/healthz").0, 404);
        registrar.logs(r#"W "The registration socket is gone and cannot be made again yet" err="No such file or directory""#);
        fs::create_dir(world.registry()).unwrap();
        is_bound_again(&world, &http, 2);
        heals_still(&world, &http, 3);
        assert_eq!(count(&registrar, "W"), 3);
        // without a pause, and as long as numbers of inodes are given again
        let _ = fs::remove_dir_all(world.path("former"));
        for binds in 4..9 {
            take(&world);
            for _ in 0..5 {
                fs::create_dir(world.registry()).unwrap();
                fs::remove_dir(world.registry()).unwrap();
                thread::sleep(Duration::from_millis(1));
            }
            fs::create_dir(world.registry()).unwrap();
            is_bound_again(&world, &http, binds);
            let _ = fs::remove_dir_all(world.path("former"));
        }
        heals_still(&world, &http, 9);
        registrar.signal(Signal::SIGTERM);
        assert_eq!(registrar.exit_code(), 0);
        assert_eq!(world.listing(), [""; 0]);
    }
}

#[test]
fn notices_that_a_directory_above_the_registry_is_moved() {
    let world = World::new();
    let _driver = world.driver();
    let (above, aside) = (world.path("a"), world.path("aside"));
    let registry = above.join("b/reg");
    fs::create_dir_all(&registry).unwrap();
    let socket = registry.join(format!("{DRIVER}-reg.sock"));
    let flag = format!("--plugin-registration-path={}", registry.display());
    let http = Http::at_a_free_port();
    let mut registrar = world.start(&[&http.flag(), &flag]);
    Kubelet::dial(&socket).register();
    is_idle_within(&registrar, 0);
    fs::rename(&above, &aside).unwrap();
    eventually("readyz", || http.ready().contains(GONE).then_some(()));
    fs::create_dir_all(&registry).unwrap();
    registrar.logs(NEW);
    Kubelet::dial(&socket).register();
    assert_eq!(http.ready(), "200 ok");
    is_idle_within(&registrar, 0);
    registrar.signal(Signal::SIGTERM);
    assert_eq!(registrar.exit_code(), 0);
    assert!(!socket.exists());
}

/// A file system may give the number of a removed directory's inode to the next one.
#[test]
fn watches_a_directory_that_looks_like_the_one_before() {
    let world = World::new();
    let _driver = world.driver();
    let (registrar, http) = registered(&world);
    let made_anew_unseen = |file: bool| {
        registrar.signal(Signal::SIGSTOP);
        fs::remove_dir_all(world.registry()).unwrap();
        fs::create_dir(world.registry()).unwrap();
        if file {
            // so that no socket of ours keeps the directory's inode
            fs::write(world.socket(), "mine").unwrap();
        }
        registrar.signal(Signal::SIGCONT);
    };
    made_anew_unseen(true);
    registrar.logs(TAKEN);
    made_anew_unseen(false);
    is_bound_again(&world, &http, 2);
    heals_still(&world, &http, 3);
}

/// Where the directory is reached over a symbolic link, nothing tells that the link is switched.
#[test]
fn follows_a_registry_directory_that_is_a_symbolic_link() {
    let world = World::new();
    let _driver = world.driver();
    let (a, b, next) = (world.path("a"), world.path("b"), world.path("next"));
    fs::create_dir(&a).unwrap();
    fs::create_dir(&b).unwrap();
    fs::remove_dir(world.registry()).unwrap();
    symlink(&a, world.registry()).unwrap();
    let (mut registrar, http) = registered(&world);
    heals_still(&world, &http, 2);
    symlink(&b, &next).unwrap();
    fs::rename(&next, world.registry()).unwrap();
    is_bound_again(&world, &http, 3);
    heals_still(&world, &http, 4);
    // from here on it can be watched
    fs::remove_file(world.registry()).unwrap();
    fs::rename(&a, world.registry()).unwrap();
    registrar.logs(FOREIGN);
    fs::remove_file(world.socket()).unwrap();
    is_bound_again(&world, &http, 5);
    is_idle_within(&registrar, 0);
    heals_still(&world, &http, 6);
    registrar.signal(Signal::SIGTERM);
    assert_eq!(registrar.exit_code(), 0);
    assert_eq!(world.listing(), [""; 0]);
}

/// A user namespace has limits of its own. Skipped where it is not permitted.
#[test]
fn heals_without_a_watch_to_spare() {
    let script = r#"echo 0 >/proc/sys/user/max_inotify_instances || exit; exec "$0" "$@""#;
    let wrapper = ["unshare", "-Ur", "sh", "-c", script];
    let mut trial = Command::new(wrapper[0]);
    let trial = trial.args(&wrapper[1..]).arg("true").output();
    if !trial.is_ok_and(|output| output.status.success()) {
        return;
    }
    let world = World::new();
    let _driver = world.driver();
    let http = Http::at_a_free_port();
    let mut registrar = world.start_under(&wrapper, &[&http.flag()]);
    world.kubelet().register();
    let descriptors = fs::read_dir(format!("/proc/{}/fd", registrar.pid())).unwrap();
    for descriptor in descriptors {
        // The kubelet's connection may have been closed meanwhile.
        if let Ok(file) = fs::read_link(descriptor.unwrap().path()) {
            assert_ne!(file, Path::new("anon_inode:inotify"));
        }
    }
    heals_still(&world, &http, 2);
    fs::remove_dir_all(world.registry()).unwrap();
    eventually("readyz", || http.ready().contains(GONE).then_some(()));
    fs::create_dir(world.registry()).unwrap();
    is_bound_again(&world, &http, 3);
    heals_still(&world, &http, 4);
    registrar.signal(Signal::SIGTERM);
    assert_eq!(registrar.exit_code(), 0);
}

/// Waits for two seconds in which the process was not woken more often.
fn is_idle_within(registrar: &Registrar, wakings: u64) {
    let switches = || -> u64 {
        let switches = registrar.status("voluntary_ctxt_switches");
        switches.parse().unwrap()
    };
    eventually("idle seconds", || {
        let before = switches();
        thread::sleep(Duration::from_secs(2));
        (switches() - before <= wakings).then_some(())
    });
}

#[test]
fn sleeps_while_all_is_well_and_looks_once_a_second_for_a_missing_directory() {
    let world = World::new();
    let _driver = world.driver();
    let (registrar, _http) = registered(&world);
    is_idle_within(&registrar, 0);
    fs::remove_dir_all(world.registry()).unwrap();
    registrar.logs(r#"W "The registration socket is gone"#);
    is_idle_within(&registrar, 6);
}

#[test]
fn offers_a_new_socket_at_sighup() {
    let world = World::new();
    let _driver = world.driver();
    let (mut registrar, http) = registered(&world);
    for binds in 2..5 {
        let before = inode(&world.socket());
        registrar.signal(Signal::SIGHUP);
        is_bound_again(&world, &http, binds);
        assert_ne!(inode(&world.socket()), before);
    }
    assert_eq!(count(&registrar, r#"I "SIGHUP, offering"#), 3);
    assert!(registrar.is_running());
}

#[test]
fn is_not_ended_by_sighup_while_it_waits_for_the_driver() {
    let world = World::new();
    let mut registrar = world.start(&["-v=5"]);
    registrar.logs(r#"I "Connecting""#);
    registrar.signal(Signal::SIGHUP);
    let _driver = world.driver();
    registrar.logs(NEW);
    assert_eq!(world.kubelet().register().name, DRIVER);
    assert!(registrar.is_running());
    assert_eq!(world.listing().len(), 1);
}

#[test]
fn does_not_offer_again_at_a_sighup_that_was_ignored_at_the_start() {
    let world = World::new();
    let _driver = world.driver();
    let http = Http::at_a_free_port();
    let wrapper = ["sh", "-c", r#"trap "" HUP; exec "$0" "$@""#];
    let mut registrar = world.start_under(&wrapper, &[&http.flag()]);
    world.kubelet().register();
    let before = inode(&world.socket());
    registrar.signal(Signal::SIGHUP);
    assert_eq!(world.kubelet().register().name, DRIVER);
    assert_eq!(http.ready(), "200 ok");
    assert_eq!(inode(&world.socket()), before);
    assert!(registrar.is_running());
}

#[test]
fn does_not_take_what_was_said_to_the_former_socket_for_the_new_one() {
    let world = World::new();
    let _driver = world.driver();
    let (registrar, http) = registered(&world);
    let mut former = world.kubelet();
    former.get_info().unwrap();
    fs::remove_file(world.socket()).unwrap();
    registrar.logs(NEW);
    assert_eq!(former.get_info().unwrap().name, DRIVER);
    assert_eq!(former.notify(true, ""), Ok(()));
    assert_eq!(http.ready(), "503 the kubelet has not called yet");
    world.kubelet().register();
    assert_eq!(http.ready(), "200 ok");
}

/// Some clean up what begins with a dot.
#[test]
fn stands_or_is_made_again_whatever_is_removed_while_it_is_made() {
    let world = World::new();
    let _driver = world.driver();
    let (mut registrar, http) = registered(&world);
    let registry = world.registry();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for entry in fs::read_dir(&registry).unwrap().flatten() {
                    if entry.file_name().as_encoded_bytes()[0] == b'.' {
                        let _ = fs::remove_file(entry.path());
                    }
                }
            }
        });
        for signals in 1..=500 {
            registrar.signal(Signal::SIGHUP);
            eventually("SIGHUP", || (count(&registrar, r#"I "SIGHUP"#) == signals).then_some(()));
        }
        done.store(true, Ordering::Relaxed);
    });
    eventually("a socket that stays", || {
        http.ready().starts_with("503 the kubelet has not").then_some(())
    });
    assert_eq!(world.kubelet().register().name, DRIVER);
    assert!(registrar.is_running());
}

#[test]
fn says_that_its_socket_cannot_be_removed_to_be_offered_again() {
    let world = World::new();
    let _driver = world.driver();
    // root may write where a mode forbids it
    let wrapper = ["setpriv", "--bounding-set=-dac_override"];
    let root = fs::metadata(world.registry()).unwrap().uid() == 0;
    let wrapper = if root { &wrapper[..] } else { &[] };
    let mut registrar = world.start_under(wrapper, &[]);
    world.kubelet().register();
    let before = inode(&world.socket());
    let mode = |mode| fs::set_permissions(world.registry(), Permissions::from_mode(mode)).unwrap();
    mode(0o500);
    registrar.signal(Signal::SIGHUP);
    registrar.logs(&format!(
        r#"W "The registration socket cannot be removed" err="Permission denied" socketPath="{}""#,
        world.socket().display()
    ));
    assert_eq!(inode(&world.socket()), before);
    assert_eq!(world.kubelet().register().name, DRIVER);
    mode(0o700);
    registrar.signal(Signal::SIGHUP);
    registrar.logs(NEW);
    assert_eq!(world.kubelet().register().name, DRIVER);
    assert!(registrar.is_running());
}

/// Takes 30 seconds, the shortest time that a kubelet may be silent.
#[test]
fn slow_offers_a_new_socket_to_a_kubelet_that_does_not_call() {
    let world = World::new();
    let _driver = world.driver();
    let http = Http::at_a_free_port();
    let registrar = world.start(&[&http.flag()]);
    registrar.logs(r#"I "Registration Server started""#);
    let (since, before) = (Instant::now(), inode(&world.socket()));
    let patience = Duration::from_secs(30);
    while count(&registrar, NEW) == 0 {
        assert!(since.elapsed() < patience + SOON);
        assert_eq!(http.get("/healthz").0, 200);
        thread::sleep(Duration::from_millis(100));
    }
    assert!(since.elapsed() > patience - SOON);
    assert_ne!(inode(&world.socket()), before);
    let line =
        r#"W "The kubelet has not called, offering the registration socket again" time="30s""#;
    assert_eq!(count(&registrar, line), 1);
    assert_eq!(world.kubelet().register().name, DRIVER);
    assert_eq!(http.ready(), "200 ok");
}
