//! Authentication and authorization of clients, delegated to an API server as in controller-runtime's
//! `WithAuthenticationAndAuthorization`.
//!
//! A `TokenReview` reviews the bearer token. A `SubjectAccessReview` reviews its user, with the path as nonResourceURL and the
//! method in lower case as verb: `get /metrics`.
//!
//! # Guarantees
//!
//! - A request without a token of an authorized user gets only 401 or 403. While the API server is unreachable, it gets 503.
//! - A decision about a user is cached for 10 seconds, so a revoked right may still work for that long. Invalid tokens are not
//!   cached.
//! - At most 256 decisions are cached.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Method, StatusCode, header};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use nodewright_runtime::json;
use nodewright_runtime::request::{Call, Connection, RequestError};

const DECISION_LIFETIME: Duration = Duration::from_secs(10);
const MAX_DECISIONS: usize = 256;

const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// Asks an API server for authorization. Clones share one state.
#[derive(Clone, Debug, Default)]
pub struct Authorization {
    connection: Arc<OnceLock<Connection>>,
    decisions: Arc<Mutex<Decisions>>,
}

/// The key of an answer: a token, a verb and a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Question {
    token: String,
    verb: String,
    path: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Access {
    Allowed,
    /// The user is not authorized.
    Denied {
        user: String,
    },
    /// The token belongs to no user.
    Unauthenticated,
}

impl Authorization {
    /// Sets the API server to ask. Until then, all requests get 503. Only the first call has an effect.
    pub fn connect(&self, connection: Connection) {
        // A second connection would be to the same API server.
        let _ = self.connection.set(connection);
    }

    /// Wraps the routes with authorization.
    pub fn protect(&self, router: Router) -> Router {
        router.route_layer(middleware::from_fn_with_state(self.clone(), check))
    }

    async fn decide(&self, question: Question) -> Result<Access, String> {
        if let Some(known) = self.decisions.lock().get(&question, Instant::now()) {
            return Ok(known);
        }
        let connection = self.connection.get().ok_or("not connected to the API server yet")?;
        let decision = ask(connection, &question).await.map_err(|error| error.to_string())?;
        if decision != Access::Unauthenticated {
            self.decisions.lock().insert(question, decision.clone(), Instant::now());
        }
        Ok(decision)
    }
}

async fn check(State(authorization): State<Authorization>, request: Request, next: Next) -> Response {
    let Some(question) = question(request.method(), request.uri().path(), request.headers()) else {
        return unauthorized();
    };
    let (verb, path) = (question.verb.clone(), question.path.clone());
    match authorization.decide(question).await {
        Ok(Access::Allowed) => next.run(request).await,
        Ok(Access::Unauthenticated) => unauthorized(),
        Ok(Access::Denied { user }) => {
            let text =
                format!("user {user:?} cannot {verb} path {path:?}: grant it by a ClusterRole with nonResourceURLs\n");
            (StatusCode::FORBIDDEN, text).into_response()
        }
        Err(error) => {
            tracing::warn!(%error, path, "failed to ask the API server who may read this; it needs create on tokenreviews and subjectaccessreviews");
            let text = "failed to ask the API server who you are; see the log of this process\n";
            (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], text).into_response()
        }
    }
}

fn unauthorized() -> Response {
    let text = "a bearer token of the cluster is needed\n";
    (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], text).into_response()
}

/// Returns `None` if the request has no bearer token.
fn question(method: &Method, path: &str, headers: &HeaderMap) -> Option<Question> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| Question {
        token: token.to_owned(),
        verb: method.as_str().to_ascii_lowercase(),
        path: path.to_owned(),
    })
}

async fn ask(connection: &Connection, question: &Question) -> Result<Access, RequestError> {
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": question.token},
    });
    let status = post(connection, TOKEN_REVIEWS, &review).await?;
    if status["authenticated"] != true {
        return Ok(Access::Unauthenticated);
    }
    let user = &status["user"];
    let mut spec = json!({"nonResourceAttributes": {"path": question.path, "verb": question.verb}});
    for (from, to) in [("username", "user"), ("uid", "uid"), ("groups", "groups"), ("extra", "extra")] {
        if !user[from].is_null() {
            spec[to] = user[from].clone();
        }
    }
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec});
    let status = post(connection, ACCESS_REVIEWS, &review).await?;
    if status["allowed"] == true {
        return Ok(Access::Allowed);
    }
    Ok(Access::Denied { user: user["username"].as_str().unwrap_or_default().to_owned() })
}

/// Creates a review and returns its status. An answer without a status grants nothing.
async fn post(connection: &Connection, path: &str, review: &Value) -> Result<Value, RequestError> {
    let answer = connection.send(Call::with(Method::POST, path, "application/json", review)).await?;
    let review: Value = json::from_slice(answer.body()).unwrap_or_default();
    Ok(review["status"].clone())
}

#[derive(Debug, Default)]
struct Decisions(HashMap<Question, (Access, Instant)>);

impl Decisions {
    fn get(&self, question: &Question, now: Instant) -> Option<Access> {
        let (decision, since) = self.0.get(question)?;
        (now < *since + DECISION_LIFETIME).then(|| decision.clone())
    }

    fn insert(&mut self, question: Question, decision: Access, now: Instant) {
        if self.0.len() >= MAX_DECISIONS {
            self.0.retain(|_, (_, since)| now < *since + DECISION_LIFETIME);
        }
        // All decisions are recent: clear the cache instead of growing it.
        if self.0.len() >= MAX_DECISIONS {
            self.0.clear();
        }
        self.0.insert(question, (decision, now));
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::routing::get;
    use http::HeaderValue;
    use kube::client::Body as KubeBody;
    use tower::{ServiceExt, service_fn};

    use super::*;
    use nodewright_observability::metrics::Metrics;
    use nodewright_runtime::leadership::Leadership;

    /// An API server that knows two tokens: `reader` may get, and `guest` may do nothing.
    struct Server {
        asked: Arc<Mutex<Vec<Value>>>,
        authorization: Authorization,
        router: Router,
    }

    fn answer(review: &Value) -> Value {
        let spec = &review["spec"];
        let token = spec["token"].as_str();
        match (review["kind"].as_str(), token) {
            (Some("TokenReview"), Some(token @ ("reader" | "guest"))) => {
                json!({"status": {"authenticated": true, "user": {"username": token, "groups": ["g"], "extra": {"k": ["v"]}}}})
            }
            (Some("TokenReview"), _) => json!({"status": {"authenticated": false, "user": {}}}),
            _ => {
                let attributes = &spec["nonResourceAttributes"];
                let may = spec["user"] == "reader" && spec["groups"] == json!(["g"]) && attributes["verb"] == "get";
                json!({"status": {"allowed": may && attributes["path"] == "/metrics"}})
            }
        }
    }

    impl Server {
        fn new() -> Self {
            let asked = Arc::new(Mutex::new(vec![]));
            let seen = asked.clone();
            let service = service_fn(move |request: Request<KubeBody>| {
                let seen = seen.clone();
                async move {
                    let body = request.into_body().collect_bytes().await?;
                    let review: Value = serde_json::from_slice(&body).unwrap();
                    seen.lock().push(review.clone());
                    Ok::<_, kube::Error>(http::Response::new(KubeBody::from(answer(&review).to_string().into_bytes())))
                }
            });
            let client = kube::Client::new(service, "default");
            let metrics = Arc::new(Metrics::new());
            let agent = HeaderValue::from_static("test");
            let authorization = Authorization::default();
            authorization.connect(Connection::new(client, agent, Leadership::unlimited(), 4, metrics));
            let router = Router::new().route("/metrics", get(|| async { "numbers" }).put(|| async { "set" }));
            Self { asked, router: authorization.protect(router), authorization }
        }

        async fn status(&self, method: &str, authorization: Option<&str>) -> u16 {
            let mut request = Request::builder().method(method).uri("/metrics");
            if let Some(value) = authorization {
                request = request.header("authorization", value);
            }
            self.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap().status().as_u16()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_those_with_the_right_are_answered() {
        let server = Server::new();
        for (method, authorization, status) in [
            ("GET", None, 401),
            ("GET", Some("Bearer"), 401),
            ("GET", Some("Bearer "), 401),
            ("GET", Some("Basic reader"), 401),
            ("GET", Some("Bearer unknown"), 401),
            ("GET", Some("Bearer guest"), 403),
            ("GET", Some("Bearer reader"), 200),
            ("GET", Some("bearer reader"), 200),
            ("PUT", Some("Bearer reader"), 403),
            ("PUT", None, 401),
        ] {
            assert_eq!(server.status(method, authorization).await, status, "{method} {authorization:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_decision_counts_for_a_short_time() {
        let server = Server::new();
        for _ in 0..3 {
            assert_eq!(server.status("GET", Some("Bearer reader")).await, 200);
        }
        assert_eq!(server.asked.lock().len(), 2, "one review of each kind");
        tokio::time::sleep(DECISION_LIFETIME).await;
        assert_eq!(server.status("GET", Some("Bearer reader")).await, 200);
        assert_eq!(server.asked.lock().len(), 4);
        for _ in 0..3 {
            assert_eq!(server.status("GET", Some("Bearer unknown")).await, 401);
        }
        assert_eq!(server.authorization.decisions.lock().0.len(), 1, "a token of no user is not remembered");
    }

    #[test]
    fn no_more_decisions_are_remembered_than_the_bound() {
        let (mut decisions, now) = (Decisions::default(), Instant::now());
        for number in 0..MAX_DECISIONS * 3 {
            let question = Question { token: number.to_string(), verb: "get".to_owned(), path: "/".to_owned() };
            decisions.insert(question.clone(), Access::Allowed, now);
            assert_eq!(decisions.get(&question, now), Some(Access::Allowed));
            assert!(decisions.0.len() <= MAX_DECISIONS);
        }
    }

    #[tokio::test]
    async fn nothing_is_answered_before_the_api_server_can_be_asked() {
        let router = Authorization::default().protect(Router::new().route("/metrics", get(|| async { "numbers" })));
        let request = Request::get("/metrics").header("authorization", "Bearer a").body(Body::empty()).unwrap();
        assert_eq!(router.oneshot(request).await.unwrap().status(), 503);
    }
}
