//! Authorization for metrics and for changing the log level.

use std::net::TcpListener;

use http::{Method, Request};
use kube::{Client, Config, client::Body};
use nodewright_e2e_scenarios::{Environment, TestResult, ensure};

/// Sends a request with a token to the secured port. Returns the status and the text.
async fn ask(client: &Client, method: Method, path: &str, token: Option<&str>) -> TestResult<(u16, String)> {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let response = client.send(request.body(Body::from(b"info".to_vec()))?).await?;
    let status = response.status().as_u16();
    let body = response.into_body().collect_bytes().await?;
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

/// Creates a service account, and returns its token.
async fn token(env: &Environment, name: &str) -> TestResult<String> {
    env.kubectl(&format!("create serviceaccount {name}")).await?;
    Ok(env.kubectl(&format!("create token {name}")).await?.trim().to_owned())
}

/// Grants a service account a verb on a path.
async fn grant(env: &Environment, name: &str, verb: &str, path: &str) -> TestResult {
    let namespace = env.namespace();
    let role = format!("{namespace}-{name}");
    env.kubectl(&format!("create clusterrole {role} --verb={verb} --non-resource-url={path}")).await?;
    let binding = format!("create clusterrolebinding {role} --clusterrole={role} --serviceaccount={namespace}:{name}");
    env.kubectl(&binding).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_for_those_whom_the_api_server_lets() -> TestResult {
    let probes = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let flags = ["--secure-metrics", &format!("--health-probe-port={probes}")];
    let env = Environment::builder("metrics").manager_flags(flags).start().await?;
    // A queue has metrics once a key has joined it.
    env.apply_class("small").await?;
    let mut config = Config::new(format!("https://127.0.0.1:{}", env.manager().await?.port()).parse()?);
    config.accept_invalid_certs = true;
    let client = Client::try_from(config)?;
    let (reader, writer) = (token(&env, "reader").await?, token(&env, "writer").await?);

    for (token, status) in [(None, 401), (Some("made-up"), 401), (Some(reader.as_str()), 403)] {
        for (method, path) in
            [(Method::GET, "/metrics"), (Method::GET, "/debug/log-level"), (Method::PUT, "/debug/log-level")]
        {
            let (code, text) = ask(&client, method.clone(), path, token).await?;
            ensure(code == status, || format!("{method} {path} got {code} instead of {status}: {text}"))?;
        }
    }
    assert_eq!(ask(&client, Method::GET, "/healthz", None).await?.0, 200, "probes need no token");

    grant(&env, "reader", "get", "/metrics").await?;
    grant(&env, "writer", "put", "/debug/log-level").await?;
    env.wait_for("the right to count", async || {
        let (code, text) = ask(&client, Method::GET, "/metrics", Some(&reader)).await?;
        Ok(code == 200 && text.contains("workqueue_depth"))
    })
    .await?;
    env.wait_for("the other right to count", async || {
        Ok(ask(&client, Method::PUT, "/debug/log-level", Some(&writer)).await?.0 == 200)
    })
    .await?;
    assert_eq!(ask(&client, Method::PUT, "/debug/log-level", Some(&reader)).await?.0, 403, "a reader changes nothing");
    assert_eq!(ask(&client, Method::GET, "/metrics", Some(&writer)).await?.0, 403);
    for name in ["reader", "writer"] {
        let role = format!("{}-{name}", env.namespace());
        env.kubectl(&format!("delete clusterrole,clusterrolebinding {role}")).await?;
    }
    env.end().await
}
