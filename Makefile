# The same commands for those whose fingers type make; dev.py does the work.
.PHONY: demo check test requirements mutants chaos walk lock

demo check test requirements mutants chaos walk lock:
	@python3 dev.py $@
