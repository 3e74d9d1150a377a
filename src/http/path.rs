//! The path of a request, by the rules of Go's multiplexer: it is told from others when decoded,
//! and a client that asks for an unclean one is sent to the clean one.

use std::fmt::Write as _;

/// The path without its percent-encoding; none if that is broken.
pub(super) fn decode(path: &str) -> Option<String> {
    let mut pieces = path.split('%');
    let mut octets = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        let (digits, rest) = piece.as_bytes().split_at_checked(2)?;
        let digit = |octet: u8| char::from(octet).to_digit(16);
        octets.push((digit(digits[0])? << 4 | digit(digits[1])?) as u8);
        octets.extend(rest);
    }
    Some(String::from_utf8_lossy(&octets).into_owned())
}

/// The path without empty and dot segments.
pub(super) fn clean(path: &str) -> String {
    let mut segments = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            _ => segments.push(segment),
        }
    }
    let slash = path.ends_with('/') && !segments.is_empty();
    format!("/{}{}", segments.join("/"), if slash { "/" } else { "" })
}

/// The path as it stands in a URL.
pub(super) fn encode(path: &str) -> String {
    let mut encoded = String::new();
    for octet in path.bytes() {
        let _ = match octet {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => encoded.write_char(octet.into()),
            _ if b"/-._~$&+=:@".contains(&octet) => encoded.write_char(octet.into()),
            _ => write!(encoded, "%{octet:02X}"),
        };
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::{clean, decode, encode};

    #[test]
    fn decodes_each_octet_once() {
        for (path, decoded) in [
            ("/healthz", Some("/healthz")),
            ("/%68ealth%7A%7a", Some("/healthzz")),
            ("/%2568", Some("/%68")),
            ("/%c3%b6", Some("/ö")),
            ("/%", None),
            ("/%6", None),
            ("/%6x", None),
            ("/%+6", None),
            ("/%ö", None),
        ] {
            assert_eq!(decode(path).as_deref(), decoded, "{path}");
        }
    }

    #[test]
    fn leaves_out_empty_and_dot_segments() {
        for (path, cleaned) in [
            ("/", "/"),
            ("", "/"),
            ("/healthz", "/healthz"),
            ("/healthz/", "/healthz/"),
            ("//healthz", "/healthz"),
            ("/./healthz", "/healthz"),
            ("/healthz/.", "/healthz"),
            ("/healthz/../healthz", "/healthz"),
            ("/../..//", "/"),
            ("/debug//pprof/", "/debug/pprof/"),
        ] {
            assert_eq!(clean(path), cleaned, "{path}");
        }
    }

    #[test]
    fn encodes_what_would_end_a_header_or_a_path() {
        assert_eq!(encode("/debug/pprof/a_b-c"), "/debug/pprof/a_b-c");
        assert_eq!(
            encode("/a b\r\n?#%\"<ö"),
            "/a%20b%0D%0A%3F%23%25%22%3C%C3%B6"
        );
    }
}
