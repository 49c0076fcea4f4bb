use super::*;

fn urls(urls: &[&str]) -> Vec<String> {
    urls.iter().map(|&url| url.to_owned()).collect()
}

fn change(kind: ConfChangeType, id: u64, context: &str) -> ConfChange {
    ConfChange { id: 7, r#type: kind as i32, node_id: id, context: context.to_owned().into() }
}

/// Ids that etcd 3.7.3 gave, with `--initial-cluster-token tok` and at the Unix second 1796028628.
#[test]
fn ids_are_those_of_etcd() {
    let first = urls(&["http://127.0.0.1:25380"]);
    assert_eq!(Members::member_id(&first, "tok", None), 12263766437248160896);
    assert_eq!(Members::cluster_id([12263766437248160896]), 7149192830792374511);
    let added = urls(&["http://127.0.0.1:25382"]);
    assert_eq!(Members::member_id(&added, "", Some(1796028628)), 11321428060089575544);
}

#[test]
fn ids_do_not_depend_on_order() {
    let (a, b) = (urls(&["http://a:1", "http://b:2"]), urls(&["http://b:2", "http://a:1"]));
    assert_eq!(Members::member_id(&a, "t", None), Members::member_id(&b, "t", None));
    assert_eq!(Members::cluster_id([1, 2, 3]), Members::cluster_id([3, 1, 2]));
}

#[test]
fn a_new_clusters_log_begins_as_etcds_does() {
    let members = Members::bootstrap(&[("n1".to_owned(), urls(&["http://127.0.0.1:25380"]))], "tok");
    let changes = members.bootstrap_changes();
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].node_id, 12263766437248160896);
    let json = r#"{"id":12263766437248160896,"peerURLs":["http://127.0.0.1:25380"],"name":"n1"}"#;
    assert_eq!(changes[0].context, json);
    let mut replayed = Members { cluster_id: members.cluster_id, ..Members::default() };
    replayed.change(&changes[0]).unwrap();
    assert_eq!(replayed, members);
}

/// Contexts as they stand in etcd 3.7.3's log.
#[test]
fn changes_of_etcd_are_understood() {
    use ConfChangeType::*;
    let mut members = Members::bootstrap(&[("n1".to_owned(), urls(&["http://127.0.0.1:25380"]))], "tok");
    let id = 11321428060089575544;
    let learner = r#"{"id":11321428060089575544,"peerURLs":["http://127.0.0.1:25382"],"isLearner":true}"#;
    members.change(&change(ConfChangeAddLearnerNode, id, learner)).unwrap();
    assert_eq!(members.conf_state().learners, [id]);
    assert_eq!(
        context(&ChangeContext { member: members.members[&id].clone(), is_promote: false }),
        learner.as_bytes()
    );
    let promote = r#"{"id":11321428060089575544,"peerURLs":null,"isPromote":true}"#;
    members.change(&change(ConfChangeAddNode, id, promote)).unwrap();
    assert_eq!(members.conf_state().voters, [id, 12263766437248160896]);
    assert_eq!(members.members[&id].peer_urls, ["http://127.0.0.1:25382"]);
    assert_eq!(members.change(&change(ConfChangeAddNode, id, promote)), Err(ChangeError::NotLearner));
    let update =
        r#"{"id":11321428060089575544,"peerURLs":["http://127.0.0.1:25382","http://localhost:25382"]}"#;
    members.change(&change(ConfChangeUpdateNode, id, update)).unwrap();
    assert_eq!(members.members[&id].peer_urls.len(), 2);
    members.change(&change(ConfChangeRemoveNode, id, "")).unwrap();
    assert_eq!(members.removed, [id].into());
    assert_eq!(members.change(&change(ConfChangeAddNode, id, learner)), Err(ChangeError::NotFound));
}

#[test]
fn refused_changes_change_nothing() {
    use ConfChangeType::*;
    let check = |kind, id, context: &str, error| {
        let initial = [("a".to_owned(), urls(&["http://a:1"])), ("b".to_owned(), urls(&["http://b:1"]))];
        let mut members = Members::bootstrap(&initial, "tok");
        // Ids that are easy to write.
        members.members =
            members.members.into_values().zip(1..).map(|(m, id)| (id, Member { id, ..m })).collect();
        members.members.get_mut(&2).unwrap().is_learner = true;
        let taken = members.members[&1].peer_urls[0].clone();
        let before = members.clone();
        let context = context.replace("TAKEN", &taken);
        assert_eq!(members.change(&change(kind, id, &context)), Err(error), "{context}");
        assert_eq!(members, before);
    };
    check(ConfChangeAddNode, 1, r#"{"id":1,"peerURLs":["http://c:1"]}"#, ChangeError::IdExists);
    check(ConfChangeAddNode, 2, r#"{"id":2,"peerURLs":["http://c:1"]}"#, ChangeError::IdExists);
    check(ConfChangeAddNode, 3, r#"{"id":3,"peerURLs":["TAKEN"]}"#, ChangeError::PeerUrlExists);
    check(
        ConfChangeAddLearnerNode,
        3,
        r#"{"id":3,"peerURLs":["http://c:1","TAKEN"]}"#,
        ChangeError::PeerUrlExists,
    );
    check(ConfChangeAddNode, 3, r#"{"id":3,"peerURLs":[]}"#, ChangeError::BadUrls);
    check(ConfChangeAddNode, 3, r#"{"id":4,"peerURLs":["http://c:1"]}"#, ChangeError::Malformed);
    check(ConfChangeAddNode, 3, "", ChangeError::Malformed);
    check(ConfChangeUpdateNode, 2, r#"{"id":2,"peerURLs":["TAKEN"]}"#, ChangeError::PeerUrlExists);
    check(ConfChangeUpdateNode, 2, r#"{"id":2,"peerURLs":["no url"]}"#, ChangeError::BadUrls);
    check(ConfChangeUpdateNode, 3, r#"{"id":3,"peerURLs":["http://c:1"]}"#, ChangeError::NotFound);
    check(ConfChangeRemoveNode, 3, "", ChangeError::NotFound);
    check(ConfChangeRemoveNode, 1, "", ChangeError::NotEnoughStarted);
    check(ConfChangeAddNode, 3, r#"{"id":3,"peerURLs":null,"isPromote":true}"#, ChangeError::NotFound);
}

#[test]
fn stored_members_come_back_whole() {
    let mut members = Members::bootstrap(&[("n1".to_owned(), urls(&["http://a:1"]))], "tok");
    let id = *members.members.keys().next().unwrap();
    members.publish(id, "renamed".to_owned(), urls(&["http://a:2"])).unwrap();
    members.removed.insert(5);
    assert_eq!(members.publish(5, String::new(), vec![]), Err(ChangeError::NotFound));
    assert_eq!(Members::from_membership(&members.to_membership()), members);
}
