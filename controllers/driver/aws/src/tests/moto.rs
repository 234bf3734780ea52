//! The driver with moto's EC2, behind the proxy of the laboratory in this process.

use std::env;

use nodewright_e2e_lab::{
    ec2::{Ec2, Faults, MOTO_VARIABLE, Moto, MotoServer},
    process::{Process, Supervisor},
};
use tempfile::TempDir;

use super::*;

/// A server of its own for one test. It ends with this value.
pub(super) struct Server {
    server: MotoServer,
    _log: TempDir,
}

impl Server {
    /// `None` if there is no moto, and the reason is printed.
    pub(super) async fn start(test: &str) -> Option<Self> {
        if env::var_os(MOTO_VARIABLE).is_none() {
            println!("skipped {test}: {MOTO_VARIABLE} is not set; `make test-aws` sets it");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let supervisor = Arc::new(Supervisor::start(&[], None).unwrap());
        let describe = |name: &str, program, arguments: Vec<String>| {
            Process::new(&supervisor, name, program, arguments, folder.path().join("log"))
        };
        Some(Self { server: MotoServer::start(describe).await.unwrap(), _log: folder })
    }

    pub(super) fn moto(&self) -> &Moto {
        self.server.client()
    }

    pub(super) fn ec2(&self) -> Ec2 {
        Ec2::new(self.moto().clone(), Faults::default())
    }
}

const CONSISTENCY: Duration = Duration::from_secs(2);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A driver with this EC2.
pub(super) fn driver(ec2: &Ec2, url: &str, page_size: usize) -> AwsDriver {
    let ec2 = ec2.clone();
    let service = tower::service_fn(move |request: Request<Full<Bytes>>| {
        let ec2 = ec2.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            // What EC2 has begun it ends, also when its client has gone.
            let (status, body) = tokio::spawn(ec2.answer(head.headers, body)).await?.ok_or("the answer is lost")?;
            Ok::<_, BoxError>(Response::builder().status(status).body(Full::new(body))?)
        }
    });
    let options = Options {
        endpoint: Some(url.to_owned()),
        request_timeout: REQUEST_TIMEOUT,
        consistency: CONSISTENCY,
        ..Options::default()
    };
    AwsDriver::with_service(service, &options, page_size).unwrap()
}
