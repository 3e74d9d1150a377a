//! The path of a request, by the rules of Go's multiplexer: a client that asks for an unclean one is
//! sent to the clean one, which is then decoded.

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

/// The path, not yet decoded, without empty and dot segments.
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

#[cfg(test)]
mod tests {
    use super::{clean, decode};

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
            ("/%2e%2e/", "/%2e%2e/"),
            ("/debug//pprof/", "/debug/pprof/"),
        ] {
            assert_eq!(clean(path), cleaned, "{path}");
        }
    }
}
