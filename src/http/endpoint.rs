//! The address of the HTTP server, by the rules of Go's `net.Listen`.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs as _};

use anyhow::anyhow;
use socket2::{Domain, Socket, Type};

use crate::sys;

const BACKLOG: i32 = 128;

/// Listens at `HOST:PORT`, where the host may be missing and the port may have a name.
pub(super) fn listen(endpoint: &str) -> anyhow::Result<TcpListener> {
    let (host, port) = split(endpoint)?;
    let address = resolve(host, port_number(port)?)?;
    bind(address).map_err(|error| {
        let reason = sys::reason(&error).to_lowercase();
        anyhow!("listen tcp {endpoint}: bind: {reason}")
    })
}

/// `HOST:PORT` or `[HOST]:PORT`; a host with colons has to have the brackets.
fn split(endpoint: &str) -> anyhow::Result<(&str, &str)> {
    let parts = match endpoint.strip_prefix('[') {
        None => endpoint.split_once(':').ok_or("missing port in address"),
        Some(literal) => match literal.split_once(']') {
            None if endpoint.contains(':') => Err("missing ']' in address"),
            parts => parts
                .and_then(|(host, after)| Some((host, after.strip_prefix(':')?)))
                .ok_or("missing port in address"),
        },
    };
    let fault = match parts {
        Err(fault) => fault,
        Ok((_, port)) if port.contains(':') => "too many colons in address",
        Ok((host, port)) if host.contains('[') || port.contains('[') => "unexpected '[' in address",
        Ok((host, port)) if host.contains(']') || port.contains(']') => "unexpected ']' in address",
        Ok(parts) => return Ok(parts),
    };
    Err(anyhow!("listen tcp: address {endpoint}: {fault}"))
}

fn port_number(port: &str) -> anyhow::Result<u16> {
    let digits = port.strip_prefix(['+', '-']).unwrap_or(port);
    if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
        let number = port.parse::<i64>().unwrap_or(i64::MAX);
        let invalid = |_| anyhow!("listen tcp: address {port}: invalid port");
        return u16::try_from(number).map_err(invalid);
    }
    match port {
        "" => Ok(0),
        "http" => Ok(80),
        "https" => Ok(443),
        _ => {
            let services = fs::read_to_string("/etc/services").unwrap_or_default();
            registered(&services, port)
                .ok_or_else(|| anyhow!("listen tcp: lookup tcp/{port}: unknown port"))
        }
    }
}

/// The port of a service by its name or alias, from a list in the form of `/etc/services`.
fn registered(services: &str, service: &str) -> Option<u16> {
    services.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let name = words.next()?;
        let port = words.next()?.strip_suffix("/tcp")?;
        let known = name == service || words.any(|alias| alias == service);
        known.then(|| port.parse().ok())?
    })
}

/// The host's address. IPv4 comes first: who asks for `localhost` by its number, as probes do, has
/// to find the server too.
fn resolve(host: &str, port: u16) -> anyhow::Result<SocketAddr> {
    if host.is_empty() || host == Ipv4Addr::UNSPECIFIED.to_string() {
        return Ok((Ipv6Addr::UNSPECIFIED, port).into());
    }
    let found: Vec<_> = (host, port).to_socket_addrs().into_iter().flatten().collect();
    found
        .iter()
        .find(|address| address.is_ipv4())
        .or(found.first())
        .copied()
        .ok_or_else(|| anyhow!("listen tcp: lookup {host}: no such host"))
}

/// All addresses of both families are one socket; of IPv4 alone where IPv6 is off.
fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let any_of_both = address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let bound = bind_in(address, any_of_both);
    match bound {
        Err(error) if any_of_both && error.kind() != io::ErrorKind::AddrInUse => {
            let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
            bind_in(address, false).map_err(|_| error)
        }
        bound => bound,
    }
}

fn bind_in(address: SocketAddr, both: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if both {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(sys::REUSE_ADDRESS)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::{port_number, registered, split};

    #[test]
    fn takes_an_address_apart() {
        for (endpoint, parts) in [
            (":9809", ("", "9809")),
            (":", ("", "")),
            ("127.0.0.1:", ("127.0.0.1", "")),
            ("localhost:http", ("localhost", "http")),
            ("[::1]:9809", ("::1", "9809")),
            ("[fe80::1%eth0]:9809", ("fe80::1%eth0", "9809")),
            ("[]:9809", ("", "9809")),
            ("[127.0.0.1]:9809", ("127.0.0.1", "9809")),
        ] {
            assert_eq!(split(endpoint).unwrap(), parts);
        }
    }

    #[test]
    fn names_the_fault_of_an_address_in_the_words_of_go() {
        for (endpoint, fault) in [
            ("9809", "missing port in address"),
            ("localhost", "missing port in address"),
            ("[::1]", "missing port in address"),
            ("[::1]9809", "missing port in address"),
            ("[::1]x:9809", "missing port in address"),
            ("[::1", "missing ']' in address"),
            ("::1:9809", "too many colons in address"),
            ("[::1]:98:09", "too many colons in address"),
            ("http://127.0.0.1:9809", "too many colons in address"),
            ("[[::1]:9809", "unexpected '[' in address"),
            ("a[b:9809", "unexpected '[' in address"),
            ("a]b:9809", "unexpected ']' in address"),
        ] {
            let reason = format!("listen tcp: address {endpoint}: {fault}");
            assert_eq!(split(endpoint).unwrap_err().to_string(), reason);
        }
    }

    #[test]
    fn reads_a_port_as_a_number_or_a_well_known_name() {
        for (port, number) in [
            ("", 0),
            ("0", 0),
            ("-0", 0),
            ("+80", 80),
            ("0065535", 65535),
            ("http", 80),
            ("https", 443),
        ] {
            assert_eq!(port_number(port).unwrap(), number, "{port}");
        }
        for (port, reason) in [
            ("-1", "address -1: invalid port"),
            ("65536", "address 65536: invalid port"),
            ("99999999999999999999", "address 99999999999999999999: invalid port"),
            ("-99999999999999999999", "address -99999999999999999999: invalid port"),
            ("0x50", "lookup tcp/0x50: unknown port"),
            ("+", "lookup tcp/+: unknown port"),
            (" ", "lookup tcp/ : unknown port"),
        ] {
            let reason = format!("listen tcp: {reason}");
            assert_eq!(port_number(port).unwrap_err().to_string(), reason);
        }
    }

    #[test]
    fn finds_a_service_by_its_name_or_an_alias_of_its_tcp_port() {
        let services =
            "# comment\n\ntftp 69/udp\nhttp-alt\t8080/tcp webcache # old\nodd x/tcp\nshort\n";
        for (service, port) in [
            ("http-alt", Some(8080)),
            ("webcache", Some(8080)),
            ("tftp", None),
            ("old", None),
            ("odd", None),
            ("short", None),
            ("#", None),
        ] {
            assert_eq!(registered(services, service), port, "{service}");
        }
    }
}
