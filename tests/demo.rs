//! A show of what the registrar does on a node, with a stand-in for the CSI driver and for the
//! kubelet: `cargo test --test demo`. Each step is checked; the first that fails ends it.

#![allow(clippy::unwrap_used, reason = "a step that cannot be taken ends the show")]
#![allow(clippy::print_stdout, reason = "it is for people to read")]

#[allow(dead_code, unused_imports, reason = "the show needs a part of it")]
#[path = "it/harness.rs"]
mod harness;

use std::panic;
use std::process::ExitCode;
use std::time::Instant;

use nix::sys::signal::Signal;

use harness::{BINARY, DRIVER, Registrar, World, eventually, get};

fn main() -> ExitCode {
    match panic::catch_unwind(show) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => {
            println!("\nThe demo FAILED; the reason is on stderr.");
            ExitCode::FAILURE
        }
    }
}

fn show() {
    println!("\nA CSI driver is registered with the kubelet. The registrar is the real program;");
    println!("the driver and the kubelet are stand-ins. The registrar's log is indented.");
    let world = World::new();

    step("The registrar starts before its driver, and waits.");
    let mut log = Log::default();
    let (mut registrar, port) = world.start_with_http(&["-v=5"]);
    log.show_to(&registrar, "Connecting");
    show_http(port, "/healthz");
    show_http(port, "/readyz");
    log.show_to(&registrar, "Health check failed, registration socket does not exist");
    assert_eq!(world.listing(), [""; 0], "nothing is offered to the kubelet yet");

    step("The driver comes up. Once its name is known, a socket is offered to the kubelet.");
    let driver = world.driver();
    log.show_to(&registrar, "Registration Server started");
    show_registry(&world);

    step("It is alive, but not ready: the kubelet has not called. The exec probe agrees.");
    show_http(port, "/healthz");
    log.show_to(&registrar, "Health check succeeded");
    show_http(port, "/readyz");
    show_metrics(port);
    show_probe(&world);
    log.show_to(&registrar, "Received GetInfo call");

    step("The kubelet asks who is there. It names the socket's path where HTTP/2 has a host:");
    let mut kubelet = world.kubelet();
    let authority = world.socket().display().to_string().replace('/', "%2F");
    println!("  kubelet   :authority {authority}");
    println!("            GetInfo");
    let info = kubelet.get_info().expect("an answer to GetInfo");
    assert_eq!((&*info.name, &*info.endpoint), (DRIVER, harness::ENDPOINT));
    println!("  registrar {} {}, versions {:?}", info.r#type, info.name, info.supported_versions);
    println!("            endpoint {}", info.endpoint);
    log.show_to(&registrar, "Received GetInfo call");

    step("A real kubelet now calls the driver at that endpoint. Then it confirms.");
    println!("  kubelet   NotifyRegistrationStatus plugin_registered:true");
    kubelet.notify(true, "").expect("an answer to NotifyRegistrationStatus");
    kubelet.leave();
    log.show_to(&registrar, "Received NotifyRegistrationStatus call");
    show_http(port, "/readyz");
    show_metrics(port);
    show_probe(&world);
    log.show_to(&registrar, "Received GetInfo call");

    step("The driver restarts. The registration stands, and the kubelet may ask again.");
    drop(driver);
    let _driver = world.driver();
    assert!(registrar.is_running(), "the registrar outlives its driver");
    println!("  kubelet   GetInfo, NotifyRegistrationStatus plugin_registered:true");
    assert_eq!(world.kubelet().register().name, DRIVER);
    log.show_to(&registrar, "Received NotifyRegistrationStatus call");

    step("The registrar is killed, and its socket stays behind. The next one replaces it.");
    registrar.signal(Signal::SIGKILL);
    assert_eq!(registrar.exit_code(), -9);
    show_registry(&world);
    let mut registrar = world.start(&[]);
    let mut log = Log::default();
    log.show_to(&registrar, "Skipping HTTP server");
    println!("  kubelet   GetInfo, NotifyRegistrationStatus plugin_registered:true");
    assert_eq!(world.kubelet().register().name, DRIVER);
    log.show_to(&registrar, "Received NotifyRegistrationStatus call");

    step("The pod is deleted: SIGTERM. The socket goes, and with it the registration.");
    let since = Instant::now();
    registrar.signal(Signal::SIGTERM);
    let code = registrar.exit_code();
    println!("  exit code {code} after {:.1} ms", since.elapsed().as_secs_f64() * 1e3);
    assert_eq!(code, 0);
    assert_eq!(world.listing(), [""; 0], "the registry directory is left as it was");
    show_registry(&world);
    println!("\nAll as it should be.");
}

fn step(text: &str) {
    println!("\n* {text}");
}

fn show_registry(world: &World) {
    println!("  registry  {:?}", world.listing());
}

fn show_http(port: u16, path: &str) {
    let response = get(port, path);
    println!("  GET       {path:<8} {} {}", response.code(), response.text());
}

fn show_metrics(port: u16) {
    let response = get(port, "/metrics");
    let shown = ["registered{", "get_info_total ", "registration_status_total{status=\"reg"];
    for name in shown {
        let start = format!("csi_node_driver_registrar_{name}");
        let mut lines = response.text().lines();
        if let Some(line) = lines.find(|line| line.starts_with(&start)) {
            println!("  GET       /metrics {line}");
        }
    }
}

fn show_probe(world: &World) {
    let registry = format!("--plugin-registration-path={}", world.registry().display());
    let endpoint = format!("--kubelet-registration-path={}", harness::ENDPOINT);
    let argv = [&**BINARY, "kubelet-registration-probe", &registry, &endpoint];
    let mut probe = world.run(&argv, |_| {});
    let code = probe.exit_code();
    let line = format!("  probe     exit {code} {}", probe.stderr());
    println!("{}", line.trim_end());
}

/// The log of one registrar, of which each line is shown once.
#[derive(Default)]
struct Log {
    shown: usize,
}

impl Log {
    /// Shows what is new, and waits until the line with this message is among it.
    fn show_to(&mut self, registrar: &Registrar, message: &str) {
        let is_there = |line: &String| line.contains(&format!("\"{message}\""));
        eventually(message, || {
            let log = registrar.log();
            let end = log.iter().skip(self.shown).position(is_there)? + self.shown + 1;
            for line in &log[self.shown..end] {
                println!("            {line}");
            }
            self.shown = end;
            Some(())
        });
    }
}
