//! The address of the HTTP server, by the rules of Go's `net.Listen`.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs as _};

use anyhow::{anyhow, bail, ensure};
use socket2::{Domain, Socket, Type};

use crate::sys;

const BACKLOG: i32 = 128;

/// Listens at `HOST:PORT`, where the host may be missing and the port may have a name.
pub(super) fn listen(endpoint: &str) -> anyhow::Result<TcpListener> {
    let (host, port) = split(endpoint)?;
    let port = port_number(port)?;
    let address = SocketAddr::new(resolve(host)?, port);
    bind(address).map_err(|error| {
        let reason = sys::reason(&error).to_lowercase();
        anyhow!("listen tcp {endpoint}: bind: {reason}")
    })
}

fn split(endpoint: &str) -> anyhow::Result<(&str, &str)> {
    let problem = |what| anyhow!("listen tcp: address {endpoint}: {what}");
    let (host, port) = endpoint
        .rsplit_once(':')
        .ok_or_else(|| problem("missing port in address"))?;
    if let Some(literal) = host.strip_prefix('[') {
        let host = literal.strip_suffix(']');
        return Ok((host.ok_or_else(|| problem("missing ']' in address"))?, port));
    }
    ensure!(!host.contains(':'), problem("too many colons in address"));
    Ok((host, port))
}

fn port_number(port: &str) -> anyhow::Result<u16> {
    if let Ok(number) = port.parse::<i64>() {
        let invalid = |_| anyhow!("listen tcp: address {port}: invalid port");
        return u16::try_from(number).map_err(invalid);
    }
    match port {
        "" => Ok(0),
        "http" => Ok(80),
        "https" => Ok(443),
        _ => registered(port).ok_or_else(|| anyhow!("listen tcp: lookup tcp/{port}: unknown port")),
    }
}

/// The port of a service by its name or alias, from the host's list.
fn registered(service: &str) -> Option<u16> {
    let services = fs::read_to_string("/etc/services").ok()?;
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
fn resolve(host: &str) -> anyhow::Result<IpAddr> {
    if host.is_empty() || host == Ipv4Addr::UNSPECIFIED.to_string() {
        return Ok(Ipv6Addr::UNSPECIFIED.into());
    }
    if let Ok(address) = host.parse() {
        return Ok(address);
    }
    let found: Vec<_> = match (host, 0).to_socket_addrs() {
        Ok(found) => found.collect(),
        Err(_) => bail!("listen tcp: lookup {host}: no such host"),
    };
    let first = found
        .iter()
        .find(|address| address.is_ipv4())
        .or(found.first());
    first
        .map(SocketAddr::ip)
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
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
