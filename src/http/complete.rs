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
    let head = str::from_utf8(answer).ok()?;
    let status = head.strip_prefix("HTTP/1.1 ")?.lines().next()?;
    let empty = head.contains("\r\ncontent-length: 0\r\n") && head.ends_with("\r\n\r\n");
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
