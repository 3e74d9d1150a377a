use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::time::{Duration, Instant};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use crate::harness::{BINARY, DRIVER, ENDPOINT, Registrar, World, free_port, get};

const MEMORY: &str = "8388608";
/// The patience of a probe that has no `timeoutSeconds`.
const PROBE_WITHIN: Duration = Duration::from_secs(1);

/// A control group that bounds memory and CPU, of the second version or the first.
struct Cgroup {
    directories: Vec<PathBuf>,
    /// Where the kernel counts what it killed for want of memory.
    events: PathBuf,
}

impl Cgroup {
    /// 8 MiB, and one hundredth of one CPU in microseconds.
    fn new() -> io::Result<Self> {
        let root = Path::new("/sys/fs/cgroup");
        if root.join("cgroup.controllers").exists() {
            let limits = [("memory.max", MEMORY), ("cpu.max", "1000 100000")];
            return Self::of("memory.events", &[(root, &limits)]);
        }
        let (memory, cpu) = (root.join("memory"), root.join("cpu"));
        let of_cpu = [("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "1000")];
        let of_memory = [("memory.limit_in_bytes", MEMORY)];
        Self::of("memory.oom_control", &[(&memory, &of_memory), (&cpu, &of_cpu)])
    }

    /// One directory in each hierarchy; the first one's has the events.
    fn of(events: &str, hierarchies: &[(&Path, &[(&str, &str)])]) -> io::Result<Self> {
        let name = format!("ndr-{}", process::id());
        let directories = hierarchies.iter().map(|(parent, _)| parent.join(&name));
        let directories: Vec<_> = directories.collect();
        // It removes what has been made should the rest fail.
        let group = Self { events: directories[0].join(events), directories };
        for (directory, (_, limits)) in group.directories.iter().zip(hierarchies) {
            fs::create_dir(directory)?;
            for (file, limit) in *limits {
                fs::write(directory.join(file), limit)?;
            }
        }
        Ok(group)
    }

    /// Runs a program in the group.
    fn run(&self, world: &World, argv: &[&str]) -> Registrar {
        let join =
            self.directories.iter().map(|it| format!("echo $$ > {}/cgroup.procs", it.display()));
        let script = join.chain([r#"exec "$0" "$@""#.into()]).collect::<Vec<_>>().join(" && ");
        world.run(&[&["sh", "-c", &script], argv].concat(), |_| {})
    }

    fn oom_kills(&self) -> String {
        let events = fs::read_to_string(&self.events).unwrap();
        events.lines().find_map(|line| line.strip_prefix("oom_kill ")).unwrap().to_owned()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for directory in &self.directories {
            let _ = fs::remove_dir(directory);
        }
    }
}

/// The binary as on a node that has just pulled the image: none of its pages is in memory, so that
/// they count for the group.
fn unread_binary(world: &World) -> String {
    let path = world.path("registrar");
    fs::copy(&*BINARY, &path).unwrap();
    let file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    path.into_os_string().into_string().unwrap()
}

#[test]
#[ignore = "a debug build is too large: REGISTRAR_BIN=… cargo test --test it cgroup:: -- --ignored"]
#[allow(clippy::print_stderr, reason = "a test that is skipped says so")]
fn of_8_mib_and_1_percent_of_a_cpu_is_enough() {
    let cgroup = match Cgroup::new() {
        Ok(cgroup) => cgroup,
        Err(error) => return eprintln!("skipped: no control group can be made here: {error}"),
    };
    let world = World::new();
    let _driver = world.driver();
    let binary = unread_binary(&world);
    let registry = format!("--plugin-registration-path={}", world.registry().display());
    let endpoint = format!("--kubelet-registration-path={ENDPOINT}");
    let address = format!("--csi-address={}", world.driver_socket().display());
    let port = free_port();
    let http = format!("--http-endpoint=127.0.0.1:{port}");
    let mut registrar = cgroup.run(&world, &[&binary, &address, &endpoint, &registry, &http]);
    registrar.logs(r#"I "Registration Server started""#);
    assert_eq!(world.kubelet().register().name, DRIVER);
    for _ in 0..10 {
        prompt(|| {
            let argv = [&*binary, "--mode=kubelet-registration-probe", &registry, &endpoint];
            let mut probe = cgroup.run(&world, &argv);
            assert_eq!((probe.exit_code(), probe.stderr()), (0, String::new()));
        });
        prompt(|| assert_eq!(get(port, "/healthz").code(), 200));
    }
    assert!(registrar.is_running());
    assert_eq!(cgroup.oom_kills(), "0");
}

fn prompt(probe: impl Fn()) {
    let since = Instant::now();
    probe();
    let elapsed = since.elapsed();
    assert!(elapsed < PROBE_WITHIN, "{elapsed:?}");
}
