-- Where is the most to gain with one decision? Groups that wait for one, the largest first.
select
    route,
    group_id,
    cause,
    open_messages,
    oldest,
    redelivered,
    returned,
    stayed_away,
    suggested_decision,
    template
from review_groups
where open_messages > 0
order by open_messages desc, route, group_id
limit 50
