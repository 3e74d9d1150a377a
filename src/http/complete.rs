//! hyper answers what it cannot parse by itself, without a body. Here its answer gets the body
//! that clients of Go's server see: the status line's words.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection on which every answer has a body.
pub(super) struct Complete<S>(pub(super) S);

/// The answer to a bad request in the place of hyper's: only those have an empty body and such a
/// status.
fn in_words(answer: &[u8]) -> Option<String> {
    let (head, body) = str::from_utf8(answer).ok()?.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.strip_prefix("HTTP/1.1 ")?;
    let empty = body.is_empty() && lines.any(|line| line == "content-length: 0");
    (status.starts_with('4') && empty).then(|| {
        let content_type = super::TEXT;
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nConnection: close\r\n\r\n{status}"
        )
    })
}

impl<S: AsyncRead + Unpin> AsyncRead for Complete<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Complete<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Some(answer) = in_words(buf) else {
            return Pin::new(&mut self.0).poll_write(cx, buf);
        };
        // The last thing that is written, and so short that it is taken whole or not at all.
        ready!(Pin::new(&mut self.0).poll_write(cx, answer.as_bytes()))?;
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::in_words;

    const HEAD: &str = "HTTP/1.1 400 Bad Request\r\n";

    #[test]
    fn gives_an_empty_answer_to_a_bad_request_the_words_of_its_status() {
        let answer = format!("{HEAD}connection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n");
        let words = in_words(answer.as_bytes()).unwrap();
        assert!(words.starts_with(HEAD), "{words}");
        assert!(words.ends_with("\r\nConnection: close\r\n\r\n400 Bad Request"), "{words}");
    }

    #[test]
    fn leaves_every_other_answer_alone() {
        for answer in [
            "",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
            &format!("{HEAD}content-length: 0\r\n"),
            &format!("{HEAD}content-length: 2\r\n\r\n"),
            &format!("{HEAD}content-length: 2\r\n\r\nno"),
            &format!("{HEAD}content-length: 4\r\n\r\nnope{HEAD}content-length: 0\r\n\r\n"),
        ] {
            assert_eq!(in_words(answer.as_bytes()), None, "{answer}");
        }
        assert_eq!(in_words(b"HTTP/1.1 400 \xff\r\ncontent-length: 0\r\n\r\n"), None);
    }
}
