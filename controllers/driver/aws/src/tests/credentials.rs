//! As whom the driver asks, with a stand-in for STS and the metadata service.

use futures::future::join_all;

use super::{aws::Aws, *};

const ROLE: &str = "arn:aws:iam::123456789012:role/machines";
const INSTANCE: (&str, &str) = ("credentialSource", "Ec2InstanceMetadata");

fn class_with(entries: &[(&str, &str)]) -> Class {
    Class { secret: secret(entries), ..class(&small("c")) }
}

/// A role that the test's key assumes.
fn role() -> Class {
    class_with(&[KEYS[0], KEYS[1], ("roleARN", ROLE)])
}

fn sts_refusal(status: u16, code: &str) -> (u16, String) {
    let error = format!("<Error><Type>Sender</Type><Code>{code}</Code><Message>hunter2</Message></Error>");
    (status, format!("<ErrorResponse>{error}<RequestId>r</RequestId></ErrorResponse>"))
}

/// The ids of the keys with which EC2 was asked.
fn keys_of_ec2(aws: &Aws) -> Vec<String> {
    let credential =
        |authorization: &str| authorization.split_once("Credential=").unwrap().1.split_once('/').unwrap().0.to_owned();
    aws.seen("ec2.").iter().map(|seen| credential(seen.header("authorization").unwrap())).collect()
}

#[tokio::test]
async fn a_web_identity_is_sent_unsigned_and_its_file_is_read_each_time() {
    let (aws, folder) = (Aws::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("token");
    let class = class_with(&[("workloadIdentityTokenFile", path.to_str().unwrap()), ("roleARN", ROLE)]);
    let driver = aws.driver();
    // They are used, and not kept.
    aws.script.lock().lifetime = 200;
    for token in ["a.b.first", "a.b.second\n"] {
        std::fs::write(&path, token).unwrap();
        driver.list(class.clone()).await.unwrap();
    }
    let asked = aws.seen("sts.");
    assert_eq!(asked[0].line, "sts.eu-west-1.amazonaws.com POST /");
    assert!(asked[0].header("authorization").is_none() && asked[0].header("x-amz-security-token").is_none());
    let role = "RoleArn=arn%3Aaws%3Aiam%3A%3A123456789012%3Arole%2Fmachines&RoleSessionName=nodewright";
    for (seen, token) in asked.iter().zip(["a.b.first", "a.b.second"]) {
        let action = "Action=AssumeRoleWithWebIdentity&Version=2011-06-15";
        assert_eq!(seen.body, format!("{action}&{role}&WebIdentityToken={token}"));
    }
    let asked = aws.seen("ec2.");
    assert_eq!(asked[1].header("x-amz-security-token"), Some("session-hunter2-ASIA2"));
    let authorization = asked[1].header("authorization").unwrap();
    assert!(authorization.starts_with("AWS4-HMAC-SHA256 Credential=ASIA2/"), "{authorization}");
    assert!(authorization.contains(";x-amz-security-token, Signature="), "{authorization}");
}

#[tokio::test]
async fn a_role_is_assumed_by_a_key_with_the_external_id() {
    let aws = Aws::new();
    let mut china = small("c");
    china["region"] = "cn-north-1".into();
    let with_id = secret(&[KEYS[0], KEYS[1], ("roleARN", ROLE), ("externalID", "fleet:1")]);
    aws.driver().list(Class { secret: with_id, ..class(&china) }).await.unwrap();
    let asked = aws.seen("sts.");
    assert_eq!(asked[0].line, "sts.cn-north-1.amazonaws.com.cn POST /");
    assert!(asked[0].body.starts_with("Action=AssumeRole&Version=2011-06-15&RoleArn="), "{}", asked[0].body);
    assert!(asked[0].body.ends_with("&ExternalId=fleet%3A1"), "{}", asked[0].body);
    let authorization = asked[0].header("authorization").unwrap();
    assert!(authorization.starts_with("AWS4-HMAC-SHA256 Credential=AKIATEST/"), "{authorization}");
    assert!(authorization.contains("/cn-north-1/sts/aws4_request"), "{authorization}");
    assert_eq!(keys_of_ec2(&aws), ["ASIA1"]);
}

#[tokio::test]
async fn the_role_of_the_instance_is_used_only_if_the_secret_asks_for_it() {
    let aws = Aws::new();
    let driver = aws.driver();
    let error = driver.list(class_with(&[])).await.unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument);
    driver.list(class_with(&KEYS)).await.unwrap();
    assert!(aws.metadata().is_empty() && aws.seen("sts.").is_empty());
    driver.list(class_with(&[INSTANCE])).await.unwrap();
    let lines: Vec<String> = aws.metadata().into_iter().map(|seen| seen.line).collect();
    assert_eq!(
        lines,
        [
            "169.254.169.254 PUT /latest/api/token",
            "169.254.169.254 GET /latest/meta-data/iam/security-credentials/",
            "169.254.169.254 GET /latest/meta-data/iam/security-credentials/my-cluster-machines",
        ]
    );
    // The instance assumes another role with the credentials that are known already.
    driver.list(class_with(&[INSTANCE, ("roleARN", ROLE)])).await.unwrap();
    assert_eq!(
        (aws.metadata().len(), keys_of_ec2(&aws)),
        (3, ["AKIATEST", "ASIA1", "ASIA2"].map(str::to_owned).into())
    );
    assert_eq!(aws.seen("sts.")[0].header("x-amz-security-token"), Some("session-hunter2-ASIA1"));
}

#[tokio::test]
async fn credentials_are_kept_until_five_minutes_before_their_end() {
    for (lifetime, requests) in [(3_600, 1), (330, 1), (290, 4)] {
        let aws = Aws::new();
        aws.script.lock().lifetime = lifetime;
        let driver = aws.driver();
        for _ in 0..4 {
            driver.list(role()).await.unwrap();
        }
        assert_eq!(aws.seen("sts.").len(), requests, "{lifetime}");
    }
    let aws = Aws::new();
    aws.script.lock().lifetime = -1;
    let error = aws.driver().list(role()).await.unwrap_err();
    assert!(error.is_passing() && aws.seen("ec2.").is_empty(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn calls_at_once_share_one_request_and_its_failure() {
    let aws = Aws::new();
    aws.script.lock().delay = Duration::from_secs(1);
    let driver = aws.driver();
    aws.script.lock().sts = Some(sts_refusal(403, "AccessDenied"));
    for refused in join_all((0..50).map(|_| driver.list(role()))).await {
        assert_eq!(refused.unwrap_err().code, Code::PermissionDenied);
    }
    assert_eq!(aws.seen("sts.").len(), 1);
    aws.script.lock().sts = None;
    for listed in join_all((0..50).map(|_| driver.list(role()))).await {
        listed.unwrap();
    }
    assert_eq!((aws.seen("sts.").len(), aws.seen("ec2.").len()), (2, 50));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_stops_no_other() {
    let aws = Aws::new();
    aws.script.lock().delay = Duration::from_secs(4);
    let driver = aws.driver();
    let dropped = tokio::time::timeout(Duration::from_secs(2), driver.list(role()));
    let other = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        driver.list(role()).await
    };
    let (dropped, other) = tokio::join!(dropped, other);
    assert!(dropped.is_err() && other.is_ok());
    assert_eq!(aws.seen("sts.").len(), 1);
    // A request that nobody waits for is over: it is not taken up later, when its time has passed.
    let driver = aws.driver();
    assert!(tokio::time::timeout(Duration::from_secs(2), driver.list(role())).await.is_err());
    tokio::time::sleep(Duration::from_mins(10)).await;
    driver.list(role()).await.unwrap();
}

#[tokio::test]
async fn secrets_that_differ_share_no_credentials() {
    let aws = Aws::new();
    let driver = aws.driver();
    let mut elsewhere = role();
    let mut spec = small("c");
    spec["region"] = "us-east-1".into();
    elsewhere.provider_spec = RawJson::from(&spec);
    let classes = [
        role(),
        class_with(&[KEYS[0], ("secretAccessKey", "another"), ("roleARN", ROLE)]),
        class_with(&[("accessKeyID", "AKIAOTHER"), KEYS[1], ("roleARN", ROLE)]),
        class_with(&[KEYS[0], KEYS[1], ("roleARN", "arn:aws:iam::123456789012:role/others")]),
        class_with(&[KEYS[0], KEYS[1], ("roleARN", ROLE), ("externalID", "fleet")]),
        elsewhere,
    ];
    for class in classes.iter().chain(&classes) {
        driver.list(class.clone()).await.unwrap();
    }
    let keys: Vec<String> = (1..=classes.len()).map(|number| format!("ASIA{number}")).collect();
    assert_eq!(keys_of_ec2(&aws), [&keys[..], &keys[..]].concat());
}

#[tokio::test]
async fn a_failure_to_get_credentials_says_nothing_of_a_vm() {
    let request =
        MachineRequest { provider_id: Some(provider_id("eu-west-1", VM)), is_proven: true, ..machine("m", role()) };
    for (sts, expected) in [
        (sts_refusal(404, "InvalidInstanceID.NotFound"), Code::Internal),
        (sts_refusal(400, "IdempotentParameterMismatch"), Code::Internal),
        (sts_refusal(403, "InvalidClientTokenId"), Code::Unauthenticated),
        (sts_refusal(503, "ServiceUnavailable"), Code::Unavailable),
        (sts_refusal(400, "ValidationError"), Code::InvalidArgument),
        ((200, "<html>hunter2".to_owned()), Code::Unavailable),
        ((302, "hunter2".to_owned()), Code::Unavailable),
        ((404, "hunter2".to_owned()), Code::Internal),
        ((200, " ".repeat(1 << 20)), Code::Unavailable),
    ] {
        let aws = Aws::new();
        aws.script.lock().sts = Some(sts);
        let driver = aws.driver();
        for error in failures(&driver, &request).await {
            assert!(error.code == expected && !error.message.contains("hunter2"), "{error}");
        }
        assert!(aws.seen("ec2.").is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_sts_ends_a_call_with_the_timeout_of_a_request() {
    let aws = Aws::new();
    aws.script.lock().delay = Duration::from_hours(1);
    let begun = tokio::time::Instant::now();
    let error = aws.driver().list(role()).await.unwrap_err();
    assert!(error.code == Code::DeadlineExceeded && begun.elapsed() < Duration::from_secs(21), "{error}");
    let error = aws.driver().list(class_with(&[INSTANCE])).await.unwrap_err();
    assert!(error.code == Code::Unavailable && error.message.contains("HttpPutResponseHopLimit"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn credentials_that_ec2_refuses_are_replaced_but_not_at_once() {
    let aws = Aws::new();
    let driver = aws.driver();
    driver.list(role()).await.unwrap();
    aws.script.lock().ec2 = (401, refused("AuthFailure"));
    for _ in 0..3 {
        assert_eq!(driver.list(role()).await.unwrap_err().code, Code::Unauthenticated);
    }
    assert_eq!(aws.seen("sts.").len(), 1);
    tokio::time::advance(Duration::from_secs(61)).await;
    aws.script.lock().ec2 = (400, refused("ExpiredToken"));
    assert_eq!(driver.list(role()).await.unwrap_err().code, Code::Unavailable);
    aws.script.lock().ec2 = (200, page(&[], ""));
    driver.list(role()).await.unwrap();
    assert_eq!((aws.seen("sts.").len(), keys_of_ec2(&aws).pop()), (2, Some("ASIA2".to_owned())));
}

#[tokio::test]
async fn nothing_secret_is_printed() {
    let aws = Aws::new();
    let driver = aws.driver();
    driver.list(role()).await.unwrap();
    let printed = format!("{driver:?} {:?}", Account::of(&role()).unwrap().session);
    for secret in ["hunter2", "AKIATEST", "ASIA1", "session-"] {
        assert!(!printed.contains(secret), "{printed}");
    }
}
