//! A CSI driver that follows a script.

use std::collections::VecDeque;
use std::fs;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::oneshot;
use tonic::{Code, Request, Response, Status};
use tower::Service as _;

use super::net::{self, UnixListener};
use super::proto::csi::identity_server::{Identity, IdentityServer};
use super::proto::csi::{GetPluginInfoRequest, GetPluginInfoResponse};
use super::proto::pluginregistration::registration_server::{Registration, RegistrationServer};
use super::proto::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};

/// How one call of GetPluginInfo is answered, and one of GetInfo by a foreign registrar.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    Name(&'static str),
    /// The same, only after a while.
    Late(&'static str, Duration),
    Error(Code, &'static str),
    Never,
}

/// A call as it was seen: its path and `grpc-timeout`.
pub(crate) type Call = (String, String);

/// A driver that listens at its socket until it is dropped, and then removes the socket, as real
/// ones do. It can stand for a foreign registrar, too.
pub(crate) struct Driver {
    socket: PathBuf,
    calls: Arc<Mutex<Vec<Call>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    /// Answers call after call by the script, and all further ones by its last entry. It listens
    /// when this returns.
    pub(crate) fn start(socket: &Path, script: &[Answer]) -> Self {
        let _ = fs::remove_file(socket);
        let listener = UnixListener::bind(socket).unwrap();
        let calls = Arc::default();
        let (stop, stopped) = oneshot::channel();
        let script = Script(Arc::new(Mutex::new(script.iter().copied().collect())));
        let serving = serve(listener, script, Arc::clone(&calls));
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                tokio::select! {
                    () = serving => {}
                    _ = stopped => {}
                }
            });
        });
        Self { socket: socket.into(), calls, stop: Some(stop), thread: Some(thread) }
    }

    /// All calls so far, of whatever method.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn serve(listener: UnixListener, script: Script, calls: Arc<Mutex<Vec<Call>>>) {
    let listener = net::into_async(listener).unwrap();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (script, calls) = (script.clone(), Arc::clone(&calls));
        let service = service_fn(move |request: http::Request<Incoming>| {
            let deadline = request.headers().get("grpc-timeout");
            let deadline = deadline.map_or("", |value| value.to_str().unwrap());
            let call = (request.uri().path().to_owned(), deadline.to_owned());
            calls.lock().unwrap().push(call);
            let script = script.clone();
            async move {
                match request.uri().path().starts_with("/csi.v1.Identity/") {
                    true => IdentityServer::new(script).call(request).await,
                    false => RegistrationServer::new(script).call(request).await,
                }
            }
        });
        tokio::spawn(
            http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service),
        );
    }
}

#[derive(Clone)]
struct Script(Arc<Mutex<VecDeque<Answer>>>);

impl Script {
    async fn next(&self) -> Result<String, Status> {
        match self.pop() {
            Answer::Name(name) => Ok(name.into()),
            Answer::Late(name, delay) => {
                tokio::time::sleep(delay).await;
                Ok(name.into())
            }
            Answer::Error(code, message) => Err(Status::new(code, message)),
            Answer::Never => pending().await,
        }
    }

    fn pop(&self) -> Answer {
        let mut answers = self.0.lock().unwrap();
        match answers.len() {
            1 => answers[0],
            _ => answers.pop_front().expect("a script has an entry"),
        }
    }
}

#[tonic::async_trait]
impl Identity for Script {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: self.next().await?,
            vendor_version: "v1.2.3".into(),
            ..Default::default()
        }))
    }
}

#[tonic::async_trait]
impl Registration for Script {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".into(),
            name: self.next().await?,
            endpoint: "/foreign/csi.sock".into(),
            supported_versions: vec!["1.0.0".into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        _: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
