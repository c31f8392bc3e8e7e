# The same commands for those whose fingers type make; dev.py does the work.
.PHONY: demo test requirements mutants chaos walk lock

demo test requirements mutants chaos walk lock:
	@python3 dev.py $@
