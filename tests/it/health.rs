use crate::harness::{Failure, World, message};

const REGISTRATION: &str = "pluginregistration.Registration";

#[test]
fn of_the_registration_is_serving_once_the_kubelet_has_confirmed() {
    let world = World::new();
    let _driver = world.driver();
    let _registrar = world.start(&[]);
    let mut kubelet = world.kubelet();
    assert_eq!(kubelet.check(REGISTRATION), Ok("NOT_SERVING"));
    kubelet.get_info().unwrap();
    assert_eq!(kubelet.check(REGISTRATION), Ok("NOT_SERVING"));
    kubelet.notify(true, "").unwrap();
    assert_eq!(kubelet.check(REGISTRATION), Ok("SERVING"));
    kubelet.get_info().unwrap();
    assert_eq!(kubelet.check(REGISTRATION), Ok("SERVING"));
}

#[test]
fn of_the_process_is_serving_all_the_while() {
    let world = World::new();
    let _driver = world.driver();
    let _registrar = world.start(&[]);
    let mut kubelet = world.kubelet();
    assert_eq!(kubelet.check(""), Ok("SERVING"));
    kubelet.notify(true, "").unwrap();
    assert_eq!(kubelet.check(""), Ok("SERVING"));
}

#[test]
fn is_not_known_of_another_service_nor_watched() {
    let world = World::new();
    let _driver = world.driver();
    let _registrar = world.start(&[]);
    let mut kubelet = world.kubelet();
    let unknown = Failure::Status(5, "unknown service csi.v1.Identity".into());
    assert_eq!(kubelet.check("csi.v1.Identity"), Err(unknown));
    let answer = kubelet.call_path("/grpc.health.v1.Health/Watch", &message(&()), &[]);
    let text = "unknown method Watch for service grpc.health.v1.Health";
    assert_eq!(answer, Err(Failure::Status(12, text.into())));
}
